"""``--weights FILE``: how much each input channel of a matrix matters, from calibration.

A safetensors file of one-dimensional F32, F16 or BF16 tensors, finite and not negative, one a matrix: named as its
module, or with ``*`` for a number (``model.layers.3.block_sparse_moe.experts.*.w1``) to serve many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from truecast.casts import int4
from truecast.checkpoint.files import LocalFile, stream
from truecast.checkpoint.header import TensorInfo, read_header
from truecast.checkpoint.source import stamp
from truecast.convert.floats import widen
from truecast.errors import InputError, RefusedError
from truecast.layouts.base import Matrix

_DTYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Importance:
    """A file of importance vectors, and which one each matrix uses."""

    path: Path
    sha256: str
    vectors: Mapping[str, TensorInfo]
    stamp: list[int]
    """Size and mtime of the file when it was read whole."""

    def of(self, matrix: Matrix) -> NDArray[np.int64]:
        """Integer weights of a matrix's input channels. Shape: ``[cols]``. Raises: RefusedError if the file changed."""
        if not self.path.exists() or stamp(self.path) != self.stamp:
            raise RefusedError("changed while it was read", where=str(self.path), fix="convert with a file at rest")
        return read_vector(self.path, self.vectors[matrix.name])


def open_importance(path: Path, matrices: Iterable[Matrix]) -> Importance:
    """Read a file's header and find the vector of every matrix; each vector is read and checked once.

    Raises: InputError naming file and tensor for a missing vector, one of another length or dtype, or a weight that is
    negative or not finite.
    """
    file = LocalFile(path)
    try:
        before = stamp(path)
        tensors, _ = read_header(file.read, str(path), file.size)
        vectors = {matrix.name: _find(tensors, matrix, path) for matrix in matrices}
        digest = hashlib.sha256()
        for data in stream(file, 0, file.size):
            digest.update(data)
    finally:
        file.close()
    for info in {info.name: info for info in vectors.values()}.values():
        read_vector(path, info)
    return Importance(path, digest.hexdigest(), vectors, before)


def read_vector(path: Path, info: TensorInfo) -> NDArray[np.int64]:
    """One vector as integer weights. Shape: ``[K]``. Raises: InputError for a weight that is none."""
    file = LocalFile(path)
    try:
        data = file.read(info.start, info.end)
    finally:
        file.close()
    try:
        return int4.importance(widen(data, info.dtype))
    except ValueError as error:
        raise InputError(str(error), where=f"{info.name} in {path}", fix="calibrate again") from None


def _find(tensors: Mapping[str, TensorInfo], matrix: Matrix, path: Path) -> TensorInfo:
    name = next((name for name in _spellings(matrix.name) if name in tensors), None)
    if name is None:
        raise InputError(
            f"holds no importance vector for {matrix.name}",
            where=str(path),
            fix=f"add a tensor of {matrix.cols} weights under that name, or with * for its numbers; the file "
            + (f"has for example {next(iter(tensors))}" if tensors else "has no tensor at all"),
        )
    info = tensors[name]
    if info.dtype not in _DTYPES:
        raise InputError(f"is {info.dtype}", where=f"{name} in {path}", fix=f"store one of {', '.join(_DTYPES)}")
    if info.shape != (matrix.cols,):
        raise InputError(
            f"is {info.dtype} {list(info.shape)}, but {matrix.name} has {matrix.cols} input channels",
            where=f"{name} in {path}",
            fix=f"give one F32 weight for each input channel: [{matrix.cols}]",
        )
    return info


def _spellings(module: str) -> Iterable[str]:
    """The name itself, then with stars for its numbers, the last number first."""
    parts = module.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()][-4:]
    for starred in product((False, True), repeat=len(numbers)):
        chosen = {i for i, star in zip(numbers, starred, strict=True) if star}
        yield ".".join("*" if i in chosen else part for i, part in enumerate(parts))
