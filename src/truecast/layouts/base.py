"""The vocabulary that all layouts share: a quantized matrix, where its parts lie, and what is to be written for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import ByteFile
from truecast.checkpoint.header import TensorInfo
from truecast.errors import InputError

U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class View:
    """Where one part of a matrix lies: a stored tensor, or one entry of its first axis, and of that every n-th row.

    ``transposed``: the entry is stored ``[in, out]``, so rows of the matrix are its columns.
    """

    tensor: TensorInfo
    entry: int | None = None
    row_start: int = 0
    row_step: int = 1
    transposed: bool = False

    @property
    def bytes(self) -> int:
        """Size of the part."""
        size = self.tensor.nbytes if self.entry is None else self.tensor.nbytes // self.tensor.shape[0]
        return size // self.row_step


@dataclass(frozen=True, slots=True)
class Matrix:
    """One quantized weight matrix ``[rows, cols]`` (out, in), in whatever layout it is stored.

    ``name`` is its module's name as a checkpoint with one module per expert spells it, so that the same matrix has the
    same name in every layout. ``layout`` is the name of its layout. ``shape`` is a stored pair of integers, rows and
    columns of the unpacked matrix, in the one layout that has it.
    """

    name: str
    layout: str
    rows: int
    cols: int
    codes: View
    scale: View
    global_scale: View | None = None
    input_scale: View | None = None
    bias: View | None = None
    shape: View | None = None

    @property
    def parts(self) -> dict[str, View]:
        """The stored parts by role, absent ones left out."""
        roles = ("codes", "scale", "global_scale", "input_scale", "bias", "shape")
        views = {role: getattr(self, role) for role in roles}
        return {role: view for role, view in views.items() if view is not None}

    @property
    def where(self) -> str:
        """Tensor and file of the codes, for messages."""
        return self.codes.tensor.where


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to be written.

    ``role`` says how its bytes come about: ``copy`` (of ``source``), or, from ``pieces``, one part of each matrix:
    ``codes``, ``scale``, ``global_scale``, ``input_scale``, ``bias``, ``shape`` (rows and columns, int64) or ``weight``
    (dequantized). Pieces follow one another along the first axis (experts); the matrices inside one piece are
    interleaved row by row. ``fp8`` and ``fp8_scale`` are a plain BF16 ``source`` cast to FP8 by blocks, and its scales.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str
    source: TensorInfo | None = None
    pieces: tuple[tuple[Matrix, ...], ...] = ()
    transposed: bool = False
    """Each piece is written ``[in, out]`` rather than ``[out, in]``."""


class Layout(Protocol):
    """What a module of this room offers for one on-disk dialect."""

    NAME: str
    FORMAT: str
    """``mxfp4``, ``nvfp4``, ``w4afp8``, ``fp8`` or ``bf16``."""
    DIALECT: str
    STACKED: bool
    """Are the experts of a bank stacked in one tensor?"""

    def match(self, tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
        """The matrices whose codes this tensor holds, by dtype, shape and siblings; none if it is not of this layout."""

    def emit(self, matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
        """The tensors that store these matrices, in the order in which they should lie."""

    def quantization_config(self, excluded: Sequence[str], activations: bool) -> dict[str, Any]:
        """``quantization_config`` of config.json; ``excluded`` modules stay unquantized, as this dialect spells them."""


def read_view(view: View, file: ByteFile) -> U8:
    """Stored bytes of a view, one row of bytes per row of the matrix. Shape: ``[rows, bytes a row]`` uint8.

    A scalar, or one entry of a vector, is a single row; an entry of a bias is one row an element.
    Raises: InputError where a row is no whole number of bytes.
    """
    tensor, shape = view.tensor, view.tensor.shape
    start, size = tensor.start, tensor.nbytes
    if view.entry is not None:
        size //= shape[0]
        start += view.entry * size
        shape = shape[1:]
    rows = shape[0] if shape else 1
    if rows == 0 or size % rows:
        raise InputError(
            f"a row of {tensor.dtype} {list(tensor.shape)} is no whole number of bytes", where=tensor.where
        )
    data = np.frombuffer(file.read(start, start + size), dtype=np.uint8).reshape(rows, -1)
    if view.transposed:
        data = data.T
    if view.row_step != 1:
        data = data[view.row_start :: view.row_step]
    return np.ascontiguousarray(data)


def group_size(layout_format: str) -> int:
    """Elements along ``in`` that share one scale: 32 for MXFP4, 16 for NVFP4, 128 for W4AFP8.

    Raises: KeyError for a format whose scales belong to no group of one row (FP8), or that has none.
    """
    return {"mxfp4": 32, "nvfp4": 16, "w4afp8": 128}[layout_format]


def class_of(name: str) -> str:
    """A tensor's or module's class: its name with every number between dots replaced by ``*``."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))
