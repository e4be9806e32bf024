"""The safetensors header, read as an untrusted document.

A file is eight bytes of little-endian header length, the header (JSON: name -> dtype, shape, data_offsets), then the
tensor bytes, with no hole and no overlap. Everything here works on the header alone; no tensor byte is read.

Source: README of the safetensors project, "Format".
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from reprlib import repr as short
from typing import Any

from truecast.errors import InputError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit on the header's length."""

MAX_DIMENSIONS = 64
"""More than that no array library allows, and a product over them is slow."""

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits an element of each dtype that safetensors knows."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A stored tensor: where it lies and what its header entry says. Offsets are absolute in the file, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size of the stored tensor in bytes."""
        return self.end - self.start

    @property
    def where(self) -> str:
        """Tensor and file, for messages."""
        return f"{self.name} in {self.file}"


@lru_cache(maxsize=1 << 16)
def nbytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes a tensor takes. Raises: ValueError for an unknown dtype or a size that is no whole number of bytes."""
    if dtype not in BITS:
        raise ValueError(f"unknown dtype {dtype!r}")
    bits = math.prod(shape) * BITS[dtype]
    if bits % 8:
        raise ValueError(f"shape {short(shape)} of {dtype} takes no whole number of bytes")
    return bits // 8


def alignment_of(dtype: str) -> int:
    """Alignment in bytes that a reader viewing the buffer as ``dtype`` needs."""
    return max(1, BITS[dtype] // 8) if BITS[dtype] % 8 == 0 else 1


def read_header(
    read: Callable[[int, int], bytes], file: str, file_bytes: int
) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Read and check the header of one file. Returns its tensors in offset order, and its ``__metadata__``.

    ``read(start, end)`` gives bytes of the file; ``file_bytes`` is its size.
    Raises: InputError for anything that the format forbids: a length beyond the file or the limit, bytes that are not
    the expected JSON, duplicate names, sizes that disagree with dtype and shape, overlaps, holes, trailing bytes.
    """
    if file_bytes < 8:
        raise InputError(
            f"{file_bytes} bytes are too few for a safetensors file",
            where=file,
            fix="download it again",
            code="shard-truncated",
        )
    (length,) = struct.unpack("<Q", read(0, 8))
    if length > MAX_HEADER_BYTES:
        raise InputError(
            f"header length {length} exceeds the format's limit of {MAX_HEADER_BYTES}",
            where=file,
            fix="this is no safetensors file",
        )
    if 8 + length > file_bytes:
        raise InputError(
            f"header length {length} lies beyond the file's {file_bytes} bytes", where=file, code="shard-truncated"
        )
    raw = read(8, 8 + length)
    if not raw.startswith(b"{"):
        raise InputError("the header does not start with '{'", where=file, fix="this is no safetensors file")
    document = _parse(raw, file)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InputError("__metadata__ is not a map from string to string", where=file)
    tensors = [_entry(name, value, file, 8 + length) for name, value in document.items()]
    tensors.sort(key=lambda t: (t.start, t.end))
    _check_tiling(tensors, file, 8 + length, file_bytes)
    return {t.name: t for t in tensors}, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate name {twice!r}")
    return result


def _parse(raw: bytes, file: str) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
        if b"\\u" in raw:
            json.dumps(document, ensure_ascii=False).encode()  # half a surrogate pair is no text, and fails here
    except (ValueError, RecursionError) as error:
        raise InputError(f"the header is not valid: {error}", where=file, fix="download it again") from None
    if not isinstance(document, dict):
        raise InputError("the header is not a JSON object", where=file)
    return document


def _entry(name: str, value: Any, file: str, data_start: int) -> TensorInfo:
    where = f"{name} in {file}"
    if not name.isprintable():
        raise InputError(f"the tensor name {name!r} holds control characters", where=file)
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise InputError("header entry lacks dtype, shape or data_offsets", where=where)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise InputError(f"unknown dtype {short(dtype)}", where=where)
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise InputError(
            f"shape {short(shape)} or data_offsets {short(offsets)} are no lists of natural numbers below 2^64",
            where=where,
        )
    if len(shape) > MAX_DIMENSIONS:
        raise InputError(f"{len(shape)} dimensions are more than the {MAX_DIMENSIONS} of any library", where=where)
    start, end = offsets
    try:
        expected = nbytes_of(dtype, tuple(shape))
    except ValueError as error:
        raise InputError(str(error), where=where) from None
    if end - start != expected:
        raise InputError(
            f"dtype {dtype} and shape {short(shape)} need {short(expected)} bytes, offsets give {end - start}",
            where=where,
        )
    return TensorInfo(name, dtype, tuple(shape), file, data_start + start, data_start + end)


def _naturals(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    for v in value:  # noqa: SIM110 - a generator would take half of the time of reading a header
        if type(v) is not int or not 0 <= v < 1 << 64:
            return False
    return True


def _check_tiling(tensors: list[TensorInfo], file: str, data_start: int, file_bytes: int) -> None:
    position = data_start
    for tensor in tensors:
        if tensor.start < position:
            raise InputError(f"overlaps the tensor before it by {position - tensor.start} bytes", where=tensor.where)
        if tensor.start > position:
            raise InputError(f"a hole of {tensor.start - position} bytes lies before it", where=tensor.where)
        if tensor.end > file_bytes:
            raise InputError(
                f"ends at byte {tensor.end}, but the file has {file_bytes}: truncated",
                where=tensor.where,
                fix="download the file again",
                code="shard-truncated",
            )
        position = tensor.end
    if position != file_bytes:
        raise InputError(f"{file_bytes - position} bytes after the last tensor belong to none", where=file)


def encode_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]) -> bytes:
    """Header bytes, length prefix included, for ``(name, dtype, shape)`` laid out one after another.

    Padded with spaces to a multiple of 8, as the format's own writer does, so that the data starts aligned.
    Raises: ValueError where the header would exceed the format's limit.
    """
    document: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, dtype, shape in tensors:
        end = position + nbytes_of(dtype, shape)
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    if len(raw) > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(raw)} bytes exceeds the format's limit of {MAX_HEADER_BYTES}")
    return struct.pack("<Q", len(raw)) + raw
