"""What has to be compared with what, so that every tensor of both sides has its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from truecast.checkpoint.header import TensorInfo
from truecast.errors import InputError
from truecast.layouts import LAYOUTS, bf16, bf16_stacked
from truecast.layouts.base import Matrix, OutTensor, View
from truecast.layouts.recognise import Contents
from truecast.layouts.stacked import MEMBERS, stack_experts
from truecast.verify.report import Failures
from truecast.verify.stored import Stored


@dataclass(frozen=True, slots=True)
class Copy:
    """A tensor that must be the same on both sides, byte for byte."""

    source: TensorInfo
    out: TensorInfo

    @property
    def start(self) -> int:
        """Where it begins in the output's file."""
        return self.out.start


@dataclass(frozen=True, slots=True)
class Pair:
    """A matrix on both sides."""

    source: Stored
    out: Stored

    @property
    def start(self) -> int:
        """Where its elements begin in the output's file."""
        return self.out.start


@dataclass(frozen=True, slots=True)
class Recast:
    """A plain BF16 tensor that is an FP8 matrix in the output."""

    source: TensorInfo
    out: Stored

    @property
    def start(self) -> int:
        """Where its elements begin in the output's file."""
        return self.out.start


Unit = Copy | Pair | Recast


@dataclass(slots=True)
class Pairing:
    """All comparisons, and what is left without a partner as failures."""

    copies: list[Copy] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    recasts: list[Recast] = field(default_factory=list)


def pair_up(
    source: Contents,
    out_tensors: Mapping[str, TensorInfo],
    out: Contents,
    unreadable: bool,
    failures: Failures,
) -> Pairing:
    """Find the partner of everything.

    ``unreadable``: some output shard could not be read, so that missing tensors are told together rather than one by
    one.
    """
    pairing = Pairing()
    missing: list[tuple[str, str]] = []
    for tensor in source.plain.values():
        partner = out_tensors.get(tensor.name)
        recast = _recast(tensor, out, source)
        if recast is not None:
            pairing.recasts.append(recast)
        elif partner is not None:
            pairing.copies.append(Copy(tensor, partner))
        else:
            missing.append((tensor.name, "is in the source, but not in the output"))
    matrices = {name: m for name, m in out.matrices.items() if name in source.matrices}
    matrices |= _respelled([m for name, m in source.matrices.items() if name not in matrices], out)
    found = {name: _without(replace(Stored.of(m), name=name), source.plain) for name, m in matrices.items()}
    found |= _bf16_matrices([m for name, m in source.matrices.items() if name not in found], out_tensors, failures)
    for name, matrix in source.matrices.items():
        if name in found:
            pairing.pairs.append(Pair(Stored.of(matrix), found[name]))
        else:
            missing.append((matrix.codes.tensor.name, f"matrix {name} of the source is not in the output"))
    _tell_missing(missing, unreadable, failures)
    accounted = {c.out.name for c in pairing.copies}
    accounted |= {view.tensor.name for p in pairing.pairs for view in p.out.parts.values()}
    accounted |= {view.tensor.name for r in pairing.recasts for view in r.out.parts.values()}
    for name, tensor in out_tensors.items():
        if name not in accounted:
            failures.add(
                "extra", "is in the output, but nothing in the source explains it", file=tensor.file, tensor=name
            )
    return pairing


def _recast(tensor: TensorInfo, out: Contents, source: Contents) -> Recast | None:
    """The FP8 matrix by blocks that a plain BF16 weight became; None if it became none."""
    module = tensor.name.removesuffix(".weight")
    matrix = out.matrices.get(module)
    if tensor.dtype != "BF16" or module == tensor.name or matrix is None or module in source.matrices:
        return None
    layout = LAYOUTS[matrix.layout]
    fits = (layout.FORMAT, layout.DIALECT) == ("fp8", "deepseek") and matrix.codes.tensor.name == tensor.name
    if not fits or tensor.shape != (matrix.rows, matrix.cols):
        return None
    stored = Stored.of(matrix)
    own = {role: view for role, view in stored.parts.items() if role in ("codes", "scale")}
    return Recast(tensor, replace(stored, parts=own))


def _banks(matrices: Iterable[Matrix]) -> Iterable[list[Matrix]]:
    banks: dict[str, list[Matrix]] = defaultdict(list)
    for matrix in matrices:
        banks[matrix.name.rpartition(".")[0].rpartition(".")[0]].append(matrix)
    return banks.values()


def _respelled(matrices: Iterable[Matrix], out: Contents) -> dict[str, Matrix]:
    """Partners of experts whose leaf names a stacked layout does not keep (``w1`` comes back as ``gate_proj``)."""
    found: dict[str, Matrix] = {}
    for members in _banks(matrices):
        try:
            stacks = list(stack_experts(members))
        except InputError:
            continue  # no bank: told as missing, if nothing else explains it
        for bank, projection, pieces in stacks:
            for expert, piece in enumerate(pieces):
                for leaf, matrix in zip(MEMBERS[projection], piece, strict=True):
                    partner = out.matrices.get(f"{bank}.{expert}.{leaf}")
                    if partner is not None and partner.codes.entry is not None:
                        found[matrix.name] = partner
    return found


def _without(stored: Stored, plain: Mapping[str, TensorInfo]) -> Stored:
    """Leave out parts that are plain tensors in the source: they are compared as copies."""
    parts = {role: view for role, view in stored.parts.items() if view.tensor.name not in plain}
    return replace(stored, parts=parts) if {"codes", "scale"} <= parts.keys() else stored


def _tell_missing(missing: list[tuple[str, str]], unreadable: bool, failures: Failures) -> None:
    if unreadable and missing:
        name, why = missing[0]
        more = f" ({len(missing)} tensors or matrices are missing: some shards cannot be read)"
        failures.add("missing", why + more, tensor=name)
        return
    for name, why in missing:
        failures.add("missing", why, tensor=name)


def _bf16_matrices(
    matrices: Iterable[Matrix], out_tensors: Mapping[str, TensorInfo], failures: Failures
) -> dict[str, Stored]:
    """The BF16 forms of these source matrices, as far as the output holds them: one by one, or stacked in banks."""
    found: dict[str, Stored] = {}
    stacked: list[Matrix] = []
    for matrix in matrices:
        emitted = list(bf16.emit([matrix], False))
        if emitted[0].name in out_tensors:
            found |= _place(emitted, "bf16", out_tensors, failures)
        else:
            stacked.append(matrix)
    for bank in _banks(stacked):
        try:
            emitted = list(bf16_stacked.emit(bank, False))
        except InputError:
            continue  # no bank: told as missing
        found |= _place(emitted, "bf16-stacked", out_tensors, failures)
    return found


def _place(
    emitted: Iterable[OutTensor], layout: str, out_tensors: Mapping[str, TensorInfo], failures: Failures
) -> dict[str, Stored]:
    """Where the matrices of emitted tensors lie in the output; a tensor of another dtype or shape is a failure."""
    parts: dict[str, dict[str, View]] = defaultdict(dict)
    shapes: dict[str, tuple[int, int]] = {}
    for tensor in emitted:
        stored = out_tensors.get(tensor.name)
        if stored is None:
            continue
        if (stored.dtype, stored.shape) != (tensor.dtype, tensor.shape):
            why = f"is {stored.dtype} {list(stored.shape)}, should be {tensor.dtype} {list(tensor.shape)}"
            failures.add("shape", why, file=stored.file, tensor=tensor.name)
            continue
        stacked = layout == bf16_stacked.NAME
        for entry, piece in enumerate(tensor.pieces):
            for start, matrix in enumerate(piece):
                view = View(stored, entry if stacked else None, start, len(piece), tensor.transposed)
                parts[matrix.name][tensor.role] = view
                shapes[matrix.name] = matrix.rows, matrix.cols
    return {
        name: Stored(name, layout, *shapes[name], views, name) for name, views in parts.items() if "weight" in views
    }
