"""From headers alone: what will be written, byte for byte of layout, and what becomes of every source tensor."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from truecast.checkpoint.header import TensorInfo, alignment_of, encode_header, nbytes_of
from truecast.checkpoint.source import Checkpoint
from truecast.convert.importance import Importance, open_importance
from truecast.convert.int4_plan import becoming_fp8, check_groups, quantized_anew
from truecast.convert.parts import Cast
from truecast.errors import InputError, UsageError
from truecast.families import Family, find_family
from truecast.families.base import is_kept, twin_key
from truecast.layouts import Layout, dialects, find_layout, format_of, fp8_deepseek, nvfp4_modelopt
from truecast.layouts.base import Matrix, OutTensor, class_of
from truecast.layouts.recognise import Contents, recognise

METADATA = {"format": "pt"}
"""What every shard that truecast writes says of itself; transformers refuses a shard without it."""


_CASTABLE = {
    "nvfp4": ("mxfp4", "nvfp4"),
    "mxfp4": ("mxfp4",),
    "w4afp8": ("mxfp4", "w4afp8"),
    "fp8": ("mxfp4",),
    "bf16": ("mxfp4", "nvfp4", "w4afp8", "fp8"),
}
"""Formats of the source from which each format is made. FP8 modules stay FP8 under every target but BF16."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to convert to.

    ``activations``: add (or keep) activation scales, ``None`` = as the source has it. ``allow_inexact``: go on where
    exactness would be lost. ``max_shard_bytes``: split anew, ``None`` = one output shard per source shard.
    For W4AFP8: ``method``: rule of the group scales; ``weights``: file of importance vectors; ``attention``: ``fp8`` or
    ``bf16``, ``None`` = FP8 where the dialect has a place for it.
    """

    format: str
    dialect: str | None = None
    activations: bool | None = None
    allow_inexact: bool = False
    max_shard_bytes: int | None = None
    method: str = "exact"
    weights: Path | None = None
    attention: str | None = None


@dataclass(frozen=True)
class ShardPlan:
    """One output file: its tensors in file order. ``verbatim`` names the source shard that it copies whole."""

    file: str
    tensors: tuple[OutTensor, ...]
    verbatim: str | None = None

    @cached_property
    def header(self) -> bytes:
        """The header that this file starts with (not for a verbatim copy). Raises: InputError if it is too long."""
        try:
            return encode_header(((t.name, t.dtype, t.shape) for t in self.tensors), METADATA)
        except ValueError as error:
            raise InputError(str(error), where=self.file, fix="split with a smaller --max-shard-size") from None

    @cached_property
    def data_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(nbytes_of(t.dtype, t.shape) for t in self.tensors)


@dataclass(slots=True)
class Plan:
    """Everything that a conversion will do. Pure: the same source headers and target give the same plan."""

    source: Checkpoint
    contents: Contents
    family: Family
    target: Target
    layout: Layout
    activations: bool
    shards: list[ShardPlan]
    twin_groups: list[list[Matrix]]
    """Cast matrices that must share one global scale; every cast matrix is in exactly one group."""
    kept: list[Matrix]
    """Quantized matrices that stay as they are."""
    fp8: list[TensorInfo]
    """Plain BF16 weights that become FP8."""
    dropped: dict[str, str]
    """Source tensor -> why it is not carried over."""
    importance: Importance | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def cast(self) -> list[Matrix]:
        """Every matrix whose bytes change."""
        return [m for group in self.twin_groups for m in group]

    @property
    def out_bytes(self) -> int:
        """Size of all output shards in bytes, headers included."""
        return sum(self.shard_bytes(s) for s in self.shards)

    def shard_bytes(self, shard: ShardPlan) -> int:
        """Size of one output shard in bytes."""
        return self.source.shards[shard.verbatim] if shard.verbatim else len(shard.header) + shard.data_bytes

    def cast_settings(self, device: str = "cpu") -> Cast:
        """What a worker has to know of the target."""
        layout = self.layout
        return Cast(
            layout.FORMAT, layout.DIALECT, layout.STACKED, self.target.method, importance=self.importance, device=device
        )

    def digest(self) -> str:
        """sha256 over the target's options and every output header: what the journal compares."""
        options = [self.layout.NAME, self.activations, self.target.allow_inexact]  # defaults resolved: however spelt
        if self.layout.FORMAT == "w4afp8":
            options += [self.target.method, self.importance.sha256 if self.importance else None]
        digest = hashlib.sha256(json.dumps(options).encode())
        for shard in self.shards:
            digest.update(shard.file.encode() + b"\0")
            digest.update(self.source.header_sha256[shard.verbatim].encode() if shard.verbatim else shard.header)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Selection:
    """What becomes of every matrix, before any output byte has its place; see :class:`Plan` for the fields."""

    source: Checkpoint
    contents: Contents
    family: Family
    target: Target
    layout: Layout
    activations: bool
    kept: list[Matrix]
    cast: list[Matrix]
    fp8: list[TensorInfo]
    importance: Importance | None

    def written(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Name, shape and bytes of every tensor of the output, in no fixed order."""
        for name in _copied(self.contents, self.kept).difference(t.name for t in self.fp8):
            info = self.source.tensors[name]
            yield name, info.shape, info.nbytes
        for info in self.fp8:
            yield from ((t.name, t.shape, nbytes_of(t.dtype, t.shape)) for t in fp8_deepseek.emit_fp8(info))
        for tensor in self.layout.emit(self.cast, self.activations):
            yield tensor.name, tensor.shape, nbytes_of(tensor.dtype, tensor.shape)


def select(source: Checkpoint, target: Target, contents: Contents | None = None) -> Selection:
    """Decide what becomes of every matrix. ``contents``: what :func:`recognise` found in the source, where known.

    Raises: UsageError for a target that does not exist or does not fit the source; InputError for packed tensors of no
    known layout, or nothing to cast.
    """
    contents = contents or recognise(source.tensors)
    if not contents.matrices:
        raise InputError("holds no quantized matrix: nothing to cast", where=source.location)
    family = find_family(source.config, source.tensors)
    layout = target_layout(contents, target)
    kept, cast = _split_kept(contents, family, layout)
    if not cast and all(m.layout != layout.NAME for m in kept):
        raise _unsuited(kept[0], layout)
    if not cast:
        raise InputError(f"is {layout.NAME} already: nothing to do", where=source.location)
    activations = target.activations
    if activations is None:
        wanted = (layout.FORMAT, layout.DIALECT) in family.wants_input_scales
        activations = layout.FORMAT == "nvfp4" and (wanted or any(m.input_scale is not None for m in cast))
    if activations and layout.FORMAT != "nvfp4":
        raise UsageError(f"--activations nvfp4 makes no sense with --to {layout.FORMAT}")
    fp8, importance = [], None
    if layout.FORMAT == "w4afp8":
        check_groups(family, contents, cast)
        fp8 = becoming_fp8(family, contents, layout, target.attention)
        anew = quantized_anew(cast)
        if not anew and (target.weights is not None or target.method != "exact"):
            option = "--method" if target.weights is None else "--weights"
            raise UsageError(f"{option} makes no sense here: the INT4 groups of {source.location} stay as they are")
        importance = None if target.weights is None else open_importance(target.weights, anew)
    return Selection(source, contents, family, target, layout, activations, kept, cast, fp8, importance)


def plan(source: Checkpoint, target: Target, contents: Contents | None = None) -> Plan:
    """Plan a conversion from the source's headers; arguments and errors are those of :func:`select`."""
    chosen = select(source, target, contents)
    layout, family = chosen.layout, chosen.family
    emitted = list(layout.emit(chosen.cast, chosen.activations))
    ordered = _place(source, chosen.contents, chosen.kept, chosen.fp8, emitted)
    shards = _shard(source, ordered, target.max_shard_bytes)
    _check_names(shards)
    note = family.engine_notes.get((layout.FORMAT, layout.DIALECT))
    if layout.FORMAT == "mxfp4" and family.dialect not in (None, layout.DIALECT):
        note = f"no engine is known to read {family.name} in this dialect; its own is {family.dialect}"
    notes = [note] if note else []
    if layout.DIALECT == "compressed-tensors" and layout.FORMAT != "fp8":
        fp8_kept = sum(format_of(m) == "fp8" for m in chosen.kept)
        if fp8_kept:
            notes.append(f"{fp8_kept:,} FP8 modules stay as they are, and this dialect's config has no words for them")
    return Plan(
        source=source,
        contents=chosen.contents,
        family=family,
        target=target,
        layout=layout,
        activations=chosen.activations,
        shards=shards,
        twin_groups=_twin_groups(family, chosen.cast, emitted),
        kept=chosen.kept,
        fp8=chosen.fp8,
        dropped=_dropped(chosen.cast, emitted, layout),
        importance=chosen.importance,
        notes=notes,
    )


def target_layout(contents: Contents, target: Target) -> Layout:
    """The layout in which a target is written. Raises: UsageError for a target or combination that does not exist."""
    names = dialects(target.format)
    if not names:
        raise UsageError(f"there is no target format {target.format!r}", fix="choose nvfp4, w4afp8, fp8, mxfp4 or bf16")
    if target.format == "mxfp4" and target.dialect is None:
        raise UsageError("--to mxfp4 changes the dialect only, so it needs --dialect", fix=f"one of {', '.join(names)}")
    stacked = all(m.codes.entry is not None for m in contents.matrices.values())
    try:
        layout = find_layout(target.format, target.dialect or names[0], stacked)
    except KeyError:
        raise UsageError(
            f"--to {target.format} has no dialect {target.dialect!r}", fix=f"choose one of {', '.join(names)}"
        ) from None
    _check_options(target, layout)
    return layout


def _check_options(target: Target, layout: Layout) -> None:
    """Options that concern W4AFP8 alone are a mistake anywhere else."""
    if layout.FORMAT != "w4afp8":
        for option, given in (
            ("--weights", target.weights is not None),
            ("--method", target.method != "exact"),
            ("--attention", target.attention is not None),
        ):
            if given:
                raise UsageError(f"{option} makes no sense with --to {layout.FORMAT}")
    if target.weights is not None and target.method != "exact":
        raise UsageError(f"--weights needs --method exact: {target.method} looks at the largest value only")
    if target.attention == "fp8" and layout.DIALECT != "sglang":
        raise UsageError(f"the dialect {layout.DIALECT} keeps attention in BF16", fix="leave out --attention fp8")


def _split_kept(contents: Contents, family: Family, layout: Layout) -> tuple[list[Matrix], list[Matrix]]:
    """Matrices that stay, and those to cast. Raises: UsageError for one that is neither."""
    kept: list[Matrix] = []
    cast: list[Matrix] = []
    for matrix in contents.matrices.values():
        stays = matrix.layout == layout.NAME or (layout.NAME == nvfp4_modelopt.NAME and is_kept(family, matrix.name))
        if not stays and format_of(matrix) not in _CASTABLE[layout.FORMAT]:
            if format_of(matrix) != "fp8":
                raise _unsuited(matrix, layout)
            stays = True
        (kept if stays else cast).append(matrix)
    return kept, cast


def _unsuited(matrix: Matrix, layout: Layout) -> UsageError:
    return UsageError(
        f"--to {layout.FORMAT} takes {' or '.join(_CASTABLE[layout.FORMAT])}, and {matrix.where} is {format_of(matrix)}",
        fix="convert from the original checkpoint",
    )


def _copied(contents: Contents, kept: Sequence[Matrix]) -> set[str]:
    """Tensors that stay as they are, and those that become FP8."""
    return set(contents.plain) | {view.tensor.name for m in kept for view in m.parts.values()}


def _place(
    source: Checkpoint,
    contents: Contents,
    kept: Sequence[Matrix],
    fp8: Sequence[TensorInfo],
    emitted: Sequence[OutTensor],
) -> list[tuple[str, list[OutTensor]]]:
    """Output units in source order: ``(source shard, tensors)``, a cast matrix's tensors where its codes stood."""
    copied = _copied(contents, kept)
    by_anchor: dict[str, list[OutTensor]] = defaultdict(list)
    for tensor in emitted:
        by_anchor[tensor.pieces[0][0].codes.tensor.name].append(tensor)
    for info in fp8:
        by_anchor[info.name] = list(fp8_deepseek.emit_fp8(info))
    units: list[tuple[str, list[OutTensor]]] = []
    for info in source.tensors.values():
        if info.name in copied and info.name not in by_anchor:
            units.append((info.file, [OutTensor(info.name, info.dtype, info.shape, "copy", source=info)]))
        elif info.name in by_anchor:
            units.append((info.file, by_anchor[info.name]))
    return units


def _shard(source: Checkpoint, units: Sequence[tuple[str, list[OutTensor]]], max_bytes: int | None) -> list[ShardPlan]:
    if max_bytes is not None:
        files = list(_split(units, max_bytes))
        width = len(files)
        names = [f"model-{i + 1:05d}-of-{width:05d}.safetensors" for i in range(width)]
        return [ShardPlan(name, _aligned(tensors)) for name, tensors in zip(names, files, strict=True)]
    by_file: dict[str, list[OutTensor]] = {name: [] for name in source.shards}
    for file, tensors in units:
        by_file[file] += tensors
    per_file = Counter(t.file for t in source.tensors.values())
    return [
        ShardPlan(file, tuple(tensors), verbatim=file)
        if len(tensors) == per_file[file] and all(t.role == "copy" for t in tensors)
        else ShardPlan(file, _aligned(tensors))
        for file, tensors in by_file.items()
        if tensors
    ]


def _split(units: Sequence[tuple[str, list[OutTensor]]], max_bytes: int) -> Iterator[list[OutTensor]]:
    current: list[OutTensor] = []
    size = 0
    for _, tensors in units:
        more = sum(nbytes_of(t.dtype, t.shape) for t in tensors)
        if current and size + more > max_bytes:
            yield current
            current, size = [], 0
        current += tensors
        size += more
    if current:
        yield current


def _aligned(tensors: Sequence[OutTensor]) -> tuple[OutTensor, ...]:
    """Keep the order if every tensor then starts aligned to its dtype; else put those of odd sizes last, widest first.

    Readers view the file's buffer as the tensor's dtype and fail on a misaligned start. Codes have no odd sizes, so the
    order of matrices stays; their scales may come later.
    """
    widest = max((alignment_of(t.dtype) for t in tensors), default=1)
    position = 0
    for tensor in tensors:
        if position % alignment_of(tensor.dtype):
            even = [t for t in tensors if nbytes_of(t.dtype, t.shape) % widest == 0]
            odd = [t for t in tensors if nbytes_of(t.dtype, t.shape) % widest]
            return (*even, *sorted(odd, key=lambda t: -alignment_of(t.dtype)))
        position += nbytes_of(tensor.dtype, tensor.shape)
    return tuple(tensors)


def _check_names(shards: Sequence[ShardPlan]) -> None:
    seen: set[str] = set()
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in seen:
                raise InputError("the output would hold this name twice", where=f"{tensor.name} in {shard.file}")
            seen.add(tensor.name)


def _dropped(cast: Sequence[Matrix], emitted: Sequence[OutTensor], layout: Layout) -> dict[str, str]:
    """Activation scales of matrices that are written without any."""
    scaled = {m.name for t in emitted if t.role == "input_scale" for piece in t.pieces for m in piece}
    why = "activation scale"
    if layout.FORMAT == "nvfp4":
        why += ": the target is weight-only"
    elif layout.FORMAT in ("w4afp8", "fp8"):
        why += ": the target finds its own at run time"
    return {m.input_scale.tensor.name: why for m in cast if m.input_scale is not None and m.name not in scaled}


def _twin_groups(family: Family, cast: Sequence[Matrix], emitted: Sequence[OutTensor]) -> list[list[Matrix]]:
    """Join what must share a global scale: fused twins, and the matrices under one stored global scale."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while (up := parent.setdefault(key, key)) != key:
            parent[key] = key = parent[up]
        return key

    keys = {m.name: twin_key(family, m.name) for m in cast}
    for tensor in emitted:
        if tensor.role == "global_scale":
            first = root(keys[tensor.pieces[0][0].name])
            for piece in tensor.pieces:
                for matrix in piece:
                    parent[root(keys[matrix.name])] = first
    groups: dict[str, list[Matrix]] = defaultdict(list)
    for matrix in cast:
        groups[root(keys[matrix.name])].append(matrix)
    return list(groups.values())


def summary(plan: Plan) -> Mapping[str, Any]:
    """The plan as a JSON-ready document: classes, bytes, what is kept and dropped."""
    classes: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    cast = {m.name for m in plan.cast}
    for matrix in plan.contents.matrices.values():
        key = class_of(matrix.name)
        classes[key] += 1
        elements[key] += matrix.rows * matrix.cols
    becomes = {class_of(m): plan.layout.NAME for m in cast}
    fp8 = {t.name for t in plan.fp8}
    layouts = {class_of(m.name): m.layout for m in plan.contents.matrices.values()}
    plain: dict[str, dict[str, Any]] = {}
    recast: dict[str, dict[str, Any]] = {}
    for tensor in plan.contents.plain.values():
        rows = recast if tensor.name in fp8 else plain
        row = rows.setdefault(class_of(tensor.name), {"dtype": tensor.dtype, "tensors": 0, "bytes": 0})
        row["tensors"] += 1
        row["bytes"] += tensor.nbytes
    return {
        "family": plan.family.name,
        "target": plan.layout.NAME,
        "activations": plan.activations,
        "source_tensors": len(plan.source.tensors),
        "source_bytes": sum(plan.source.shards.values()),
        "out_tensors": sum(len(s.tensors) for s in plan.shards),
        "out_bytes": plan.out_bytes,
        "shards": len(plan.shards),
        "verbatim_shards": sum(s.verbatim is not None for s in plan.shards),
        "twin_groups": len(plan.twin_groups),
        "classes": [
            {
                "class": key,
                "matrices": classes[key],
                "elements": elements[key],
                "from": layouts[key],
                "to": becomes.get(key, layouts[key]),
            }
            for key in sorted(classes)
        ],
        "plain": [{"class": key, **plain[key]} for key in sorted(plain)],
        "fp8": [{"class": key, **recast[key]} for key in sorted(recast)],
        "quantized": len(quantized_anew(plan.cast)) if plan.layout.FORMAT == "w4afp8" else 0,
        "dropped": len(plan.dropped),
        "notes": plan.notes,
    }
