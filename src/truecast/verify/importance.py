"""The importance vectors by which INT4 scales were chosen, read again from their file.

A safetensors file of one-dimensional F32, F16 or BF16 tensors, each named as a module, or with ``*`` for some of its
numbers. A module's own name goes first, then names with stars for the last of its numbers, and so on to the left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import LocalFile
from truecast.checkpoint.header import TensorInfo, read_header
from truecast.errors import InputError
from truecast.verify.reader import CHUNK_BYTES

_GROUP = 128
_STARRED = 4
"""So many numbers of a name, the last ones, may be stars."""


@dataclass(frozen=True, slots=True)
class Importance:
    """A file of importance vectors."""

    path: Path
    sha256: str
    tensors: dict[str, TensorInfo]
    suffix: str = ""
    """What a tensor's name has behind that of its module."""

    def of(self, modules: Iterable[str]) -> Importance:
        """The part that concerns these modules."""
        used = {name + self.suffix for module in modules for name in _names(module)}
        return Importance(self.path, self.sha256, {k: v for k, v in self.tensors.items() if k in used}, self.suffix)

    def weights(self, module: str, cols: int) -> NDArray[np.int64]:
        """Integer weights of a module's input channels. Shape: ``[cols]``, 1..65535.

        In proportion within each group of 128 channels, the largest 65535; all 1 where a group has none above zero.
        Raises: InputError for no vector, one of another length or dtype, or a weight that is negative or not finite.
        """
        names = (name + self.suffix for name in _names(module))
        info = next((self.tensors[name] for name in names if name in self.tensors), None)
        if info is None:
            raise InputError(f"holds no importance vector for {module}", where=str(self.path))
        if info.shape != (cols,) or info.dtype not in ("F32", "F16", "BF16"):
            raise InputError(
                f"is {info.dtype} {list(info.shape)}, but {module} has {cols} input channels",
                where=f"{info.name} in {self.path}",
            )
        groups = self._read(info).reshape(-1, _GROUP)
        bad = np.flatnonzero(~(np.isfinite(groups) & (groups >= 0)))
        if bad.size:
            value = float(groups.flat[int(bad[0])])
            raise InputError(
                f"weight of channel {int(bad[0])} is {value}; it must be finite and not negative",
                where=f"{info.name} in {self.path}",
            )
        largest = groups.max(axis=1, keepdims=True)
        share = groups / np.where(largest > 0, largest, 1)
        return np.where(largest > 0, np.maximum(1, np.rint(share * 65535)), 1).astype(np.int64).reshape(-1)

    def _read(self, info: TensorInfo) -> NDArray[np.float64]:
        file = LocalFile(self.path)
        try:
            data = file.read(info.start, info.end)
        finally:
            file.close()
        if info.dtype == "BF16":
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return np.frombuffer(data, "<f4" if info.dtype == "F32" else "<f2").astype(np.float64)


def open_importance(path: Path, suffix: str = "") -> Importance:
    """Read the header and the hash of a file. Raises: InputError if it is no safetensors file."""
    file = LocalFile(path)
    try:
        tensors, _ = read_header(file.read, str(path), file.size)
        digest = hashlib.sha256()
        for position in range(0, file.size, CHUNK_BYTES):
            digest.update(file.read(position, min(position + CHUNK_BYTES, file.size)))
    finally:
        file.close()
    return Importance(path, digest.hexdigest(), tensors, suffix)


def _names(module: str) -> Iterator[str]:
    parts = module.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()][-_STARRED:]
    for chosen in range(1 << len(numbers)):
        starred = {place for bit, place in enumerate(reversed(numbers)) if chosen >> bit & 1}
        yield ".".join("*" if place in starred else part for place, part in enumerate(parts))
