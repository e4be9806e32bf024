"""Writing a made-up checkpoint: shards streamed tensor by tensor, or true headers over sparse files, then the index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.shaped.contents import Spec
from truecast.checkpoint.header import encode_header
from truecast.checkpoint.index import INDEX_FILE
from truecast.checkpoint.writer import FileWriter, write_file
from truecast.errors import RefusedError

_DTYPE_ORDER = ("I64", "F32", "BF16", "F8_E8M0", "F8_E4M3", "I8", "U8")


def library_order(specs: Iterable[Spec]) -> list[Spec]:
    """The order in which the safetensors library lays tensors out: wider dtypes first, then by name.

    Source: safetensors 0.6, ``prepare`` in safetensors/src/tensor.rs (by dtype descending, then name).
    """
    return sorted(specs, key=lambda spec: (_DTYPE_ORDER.index(spec.dtype), spec.name))


@dataclass(frozen=True, slots=True)
class Made:
    """What was made, in numbers."""

    shards: int
    tensors: int
    total_bytes: int

    def __str__(self) -> str:
        return f"{self.tensors:,} tensors, {self.total_bytes:,} bytes of tensor data in {self.shards} shards"


def write_checkpoint(
    out: Path,
    shards: Mapping[str, list[Spec]],
    files: Mapping[str, bytes],
    *,
    metadata: dict[str, str],
    fill: Callable[[Spec], Iterable[memoryview]],
    sparse: bool = False,
) -> Made:
    """Write all shards, the index and the small files into the new or empty folder ``out``.

    ``metadata`` is the ``__metadata__`` of each shard; ``fill`` gives the bytes of a tensor, piece by piece.
    ``sparse``: headers are true, the data is a hole of the right size that reads as zeros and takes no space.
    Raises: RefusedError if ``out`` is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RefusedError("is not empty", where=str(out), fix="name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for name, specs in shards.items():
        ordered = library_order(specs)
        header = encode_header([(s.name, s.dtype, s.shape) for s in ordered], metadata)
        data_bytes = sum(s.nbytes for s in ordered)
        if sparse:
            _write_sparse(out / name, header, data_bytes)
        else:
            _write_shard(out / name, header, ordered, fill)
        weight_map.update((s.name, name) for s in ordered)
        total_bytes += data_bytes
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    write_file(out / INDEX_FILE, json.dumps(index, indent=2).encode())
    for name, data in files.items():
        write_file(out / name, data)
    return Made(len(shards), len(weight_map), total_bytes)


def _write_sparse(path: Path, header: bytes, data_bytes: int) -> None:
    write_file(path, header)
    os.truncate(path, len(header) + data_bytes)


def _write_shard(path: Path, header: bytes, specs: list[Spec], fill: Callable[[Spec], Iterable[memoryview]]) -> None:
    writer = FileWriter(path)
    try:
        writer.write(header)
        for spec in specs:
            for piece in fill(spec):
                writer.write(piece)
        writer.commit()
    except BaseException:
        writer.abort()
        raise
