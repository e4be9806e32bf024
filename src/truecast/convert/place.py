"""Where every output byte goes: which tensors stand in which shard, and in which order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from truecast.checkpoint.header import alignment_of, encode_header, nbytes_of
from truecast.checkpoint.source import Checkpoint
from truecast.convert.select import Selection, copied
from truecast.errors import InputError
from truecast.layouts import fp8_deepseek
from truecast.layouts.base import OutTensor

METADATA = {"format": "pt"}
"""What every shard that truecast writes says of itself; transformers refuses a shard without it."""


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


def place(chosen: Selection, emitted: Sequence[OutTensor]) -> list[ShardPlan]:
    """All output shards; ``emitted`` are the tensors of the cast matrices. Raises: InputError for a name given twice."""
    shards = _shard(chosen.source, _units(chosen, emitted), chosen.target.max_shard_bytes)
    _check_names(shards)
    return shards


def _units(chosen: Selection, emitted: Sequence[OutTensor]) -> list[tuple[str, list[OutTensor]]]:
    """Output units in source order: ``(source shard, tensors)``, a cast matrix's tensors where its codes stood."""
    stays = copied(chosen.contents, chosen.kept)
    by_anchor: dict[str, list[OutTensor]] = defaultdict(list)
    for tensor in emitted:
        by_anchor[tensor.pieces[0][0].codes.tensor.name].append(tensor)
    for info in chosen.fp8:
        by_anchor[info.name] = list(fp8_deepseek.emit_fp8(info))
    units: list[tuple[str, list[OutTensor]]] = []
    for info in chosen.source.tensors.values():
        if info.name in stays and info.name not in by_anchor:
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
