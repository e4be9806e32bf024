"""One matrix as one side stores it: where its parts lie, and its parts in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import ByteFile
from truecast.checkpoint.header import BITS, TensorInfo
from truecast.layouts import LAYOUTS, bf16
from truecast.layouts.base import Matrix, View, read_view
from truecast.verify.canonical import ValueTable, mxfp4_table, nvfp4_table

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
Read = Callable[[str], ByteFile]

FEW_HALF_BLOCKS = 512
"""Up to so many half blocks of a matrix are fetched one by one rather than with the whole matrix."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix ``[rows, cols]`` of one checkpoint and the views of its parts by role.

    Roles: ``codes``, ``scale``, ``global_scale``, ``input_scale``, ``bias``, ``shape``; for BF16 ``weight`` and ``bias``.
    """

    name: str
    layout: str
    rows: int
    cols: int
    parts: Mapping[str, View]
    spelling: str = ""
    """The module's name as this side spells it; ``name`` is the source's."""

    @classmethod
    def of(cls, matrix: Matrix) -> Stored:
        """What recognition found."""
        return cls(matrix.name, matrix.layout, matrix.rows, matrix.cols, matrix.parts, matrix.name)

    @property
    def format(self) -> str:
        """``mxfp4``, ``nvfp4``, ``w4afp8``, ``fp8`` or ``bf16``."""
        return LAYOUTS[self.layout].FORMAT

    @property
    def divides(self) -> bool:
        """Is the global scale a divisor?"""
        return self.format == "nvfp4" and LAYOUTS[self.layout].DIALECT == "compressed-tensors"

    @property
    def main(self) -> View:
        """The part that holds the elements."""
        return self.parts["weight"] if "weight" in self.parts else self.parts["codes"]

    @property
    def contiguous(self) -> bool:
        """Do the elements lie in the file row after row, and nothing between?"""
        return self.main.row_step == 1 and not self.main.transposed

    @property
    def start(self) -> int:
        """Offset in its file at which the elements begin."""
        view = self.main
        if view.entry is None:
            return view.tensor.start
        return view.tensor.start + view.entry * (view.tensor.nbytes // view.tensor.shape[0])


@dataclass(frozen=True, eq=False)
class Packed:
    """A 4-bit matrix in memory. Shapes: codes ``[rows, cols/2]``, scale ``[rows, cols/32 or /16]`` uint8.

    The codes are read when they are first asked for: often it is known already that they are equal.
    """

    stored: Stored
    scale: U8
    global_scale: np.float32 | None
    read: Read

    @cached_property
    def codes(self) -> U8:
        """Packed codes. Shape: ``[rows, cols/2]`` uint8."""
        return _part(self.stored, "codes", self.read)

    def half_block_codes(self, indices: NDArray[np.int64]) -> U8:
        """Packed codes of some half blocks, counted row by row; few of them are read one by one.

        Shapes: ``[n]`` -> ``[n, 8]`` uint8.
        """
        if "codes" in self.__dict__ or not self.stored.contiguous or indices.size > FEW_HALF_BLOCKS:
            return self.codes.reshape(-1, 8)[indices]
        file, start = self.read(self.stored.main.tensor.file), self.stored.start
        pieces = [file.read(start + 8 * int(i), start + 8 * int(i) + 8) for i in indices]
        return np.frombuffer(b"".join(pieces), dtype=np.uint8).reshape(-1, 8)

    @property
    def half_blocks(self) -> int:
        """Groups of 16 elements."""
        return self.stored.rows * self.stored.cols // 16

    @property
    def table(self) -> ValueTable:
        """What its codes mean."""
        if self.global_scale is None:
            return mxfp4_table()
        return nvfp4_table(self.global_scale, self.stored.divides)

    @property
    def nan_scales(self) -> NDArray[np.bool_]:
        """Which block scales are NaN. Shape: that of ``scale``."""
        return np.asarray(self.scale == 0xFF if self.global_scale is None else (self.scale & 0x7F) == 0x7F)

    @property
    def per_scale(self) -> int:
        """Half blocks (of 16 elements) that share a scale."""
        return 2 if self.global_scale is None else 1


def load_packed(stored: Stored, read: Read) -> Packed:
    """Read scale and global scale."""
    return Packed(stored, _part(stored, "scale", read), load_scalar(stored, "global_scale", read), read)


def load_scalar(stored: Stored, role: str, read: Read) -> np.float32 | None:
    """A float32 part, None if the side has none."""
    if role not in stored.parts:
        return None
    return np.float32(_part(stored, role, read).view("<f4")[0, 0])


def odd_bias(stored: Stored) -> bool:
    """Is the bias of a dtype whose elements are no whole bytes?"""
    return "bias" in stored.parts and BITS[stored.parts["bias"].tensor.dtype] % 8 != 0


def load_bias(stored: Stored, read: Read) -> bytes | None:
    """Stored bytes of the bias, element after element; None if there is none."""
    return _part(stored, "bias", read).tobytes() if "bias" in stored.parts else None


@dataclass(frozen=True, eq=False, slots=True)
class PlainRows:
    """A BF16 matrix, read by rows where it is stored by rows, else held whole."""

    stored: Stored
    read: Read
    whole: U16 | None

    def rows(self, first: int, last: int) -> U16:
        """BF16 bit patterns of rows ``first`` to ``last``. Shape: ``[last - first, cols]`` uint16."""
        if self.whole is not None:
            return self.whole[first:last]
        tensor = self.stored.main.tensor
        start, width = tensor.start, 2 * self.stored.cols
        data = self.read(tensor.file).read(start + first * width, start + last * width)
        return np.frombuffer(data, dtype="<u2").reshape(-1, self.stored.cols)


def open_bf16(stored: Stored, read: Read) -> PlainRows:
    """A BF16 matrix."""
    return PlainRows(stored, read, None if stored.contiguous else _load_bf16(stored, read))


def open_plain(tensor: TensorInfo, read: Read) -> PlainRows:
    """A plain BF16 tensor of two dimensions."""
    rows, cols = tensor.shape
    stored = Stored(tensor.name.removesuffix(".weight"), bf16.NAME, rows, cols, {"weight": View(tensor)})
    return PlainRows(stored, read, None)


def _load_bf16(stored: Stored, read: Read) -> U16:
    view = stored.parts["weight"]
    tensor, shape = view.tensor, view.tensor.shape
    start, size = stored.start, tensor.nbytes
    if view.entry is not None:
        size, shape = size // shape[0], shape[1:]
    data = np.frombuffer(read(tensor.file).read(start, start + size), dtype="<u2").reshape(shape)
    if view.transposed:
        data = data.T
    return np.ascontiguousarray(data[view.row_start :: view.row_step])


def _part(stored: Stored, role: str, read: Read) -> U8:
    view = stored.parts[role]
    return read_view(view, read(view.tensor.file))
