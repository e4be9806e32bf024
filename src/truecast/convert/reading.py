"""Reading the source inside a worker: the parts of a matrix, checked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import ByteFile
from truecast.convert.floats import widen
from truecast.errors import InputError
from truecast.formats import e8m0
from truecast.layouts import format_of, w4afp8_compressed_tensors
from truecast.layouts.base import Matrix, View, read_view

U8 = NDArray[np.uint8]

FEW_BLOCKS = 256
"""Up to so many blocks of a matrix are fetched one by one rather than with the whole matrix."""


class Codes:
    """A matrix's packed codes, read only as far as they are asked for."""

    def __init__(self, matrix: Matrix, read: Callable[[str], ByteFile]) -> None:
        self._view, self._rows = matrix.codes, matrix.rows
        self._file = read(matrix.codes.tensor.file)
        self._packed: U8 | None = None

    @property
    def stored_together(self) -> bool:
        """Do they fill a stored tensor of their own, row after row?"""
        return self._view.entry is None and self._view.row_step == 1 and not self._view.transposed

    def packed(self) -> U8:
        """All of them. Shape: ``[N, bytes a row]``."""
        if self._packed is None:
            self._packed = read_view(self._view, self._file)
        return self._packed

    def blocks(self, rows: NDArray[np.int64], groups: NDArray[np.int64]) -> U8:
        """Those of some blocks of 32. Shapes: rows ``[n]``, block numbers ``[n]`` -> ``[n, 16]``."""
        if self._packed is None and self.stored_together and rows.size <= FEW_BLOCKS:
            starts = self._view.tensor.start + rows * (self._view.tensor.nbytes // self._rows) + groups * 16
            data = b"".join(self._file.read(int(start), int(start) + 16) for start in starts)
            return np.frombuffer(data, dtype=np.uint8).reshape(-1, 16)
        return self.packed().reshape(self._rows, -1, 16)[rows, groups]


def read_scale(matrix: Matrix, read: Callable[[str], ByteFile]) -> U8:
    """The block scales as stored, a row of bytes for each row. Raises: InputError if one is no usable number."""
    scale = read_view(matrix.scale, read(matrix.scale.tensor.file))
    check_scales(matrix, scale)
    return scale


def check_scales(matrix: Matrix, scale: U8) -> None:
    """Refuse block scales that are NaN, or, where scales are wider floats, infinite or zero.

    Raises: InputError naming tensor, row and block.
    """
    match format_of(matrix):
        case "mxfp4":
            if int(scale.max()) < e8m0.NAN:
                return
            bad, values = scale == e8m0.NAN, None
        case "nvfp4":
            bad, values = (scale & 0x7F) == 0x7F, None
        case _:
            values = widen(scale, matrix.scale.tensor.dtype)
            bad = ~np.isfinite(values) | (values == 0)
    if bad.any():
        row, block = (int(i) for i in np.argwhere(bad)[0])
        is_what = f"NaN (byte {int(scale[row, block])})" if values is None else str(values[row, block])
        raise InputError(
            f"{matrix.name}: block scale is {is_what} at row {row}, block {block}"
            f"{'' if int(bad.sum()) == 1 else f', and in {int(bad.sum()) - 1} more blocks'}",
            where=matrix.scale.tensor.where,
            fix="download the shard again, or ask whoever made it",
        )


def read_global_scale(matrix: Matrix, read: Callable[[str], ByteFile]) -> np.float32:
    """The stored global scale. Raises: InputError if it is not positive and finite."""
    assert matrix.global_scale is not None
    return read_scalar(matrix.global_scale, read, "global scale")


def read_scalar(view: View, read: Callable[[str], ByteFile], what: str) -> np.float32:
    """A stored scale of a whole tensor, as float32. Raises: InputError if it is not positive and finite."""
    value = widen(read_view(view, read(view.tensor.file)), view.tensor.dtype)[0, 0]
    if not (np.isfinite(value) and value > 0):
        raise InputError(f"{what} is {value}; it must be positive and finite", where=view.tensor.where)
    return np.float32(value)


def inverted(value: np.float32, view: View) -> np.float32:
    """One over a scale, for the dialect that divides. Raises: InputError where float32 does not hold it."""
    with np.errstate(over="ignore"):
        inverse = np.float32(1) / value
    if not np.isfinite(inverse):
        raise InputError(f"scale is {value}, and one over it is beyond float32", where=view.tensor.where)
    return np.float32(inverse)


def check_one_global_scale(group: list[Matrix], read: Callable[[str], ByteFile]) -> None:
    """Refuse a bank that will store one global scale for matrices which have different ones, or have none.

    Raises: InputError naming the first matrix that differs.
    """
    first = group[0]
    for matrix in group:
        alike = matrix.layout == first.layout and matrix.global_scale is not None
        if not alike or read_global_scale(matrix, read) != read_global_scale(first, read):
            raise InputError(
                f"its global scale is not that of {first.name}, and the bank would store one for both",
                where=matrix.where,
                fix="convert with --dialect compressed-tensors, which stores one for each expert",
            )


def check_stored_shape(matrix: Matrix, read: Callable[[str], ByteFile]) -> None:
    """Where a layout stores the shape, compare it with what the codes hold. Raises: InputError where they differ."""
    if matrix.shape is not None:
        w4afp8_compressed_tensors.check_stored_shape(matrix, read(matrix.shape.tensor.file))
