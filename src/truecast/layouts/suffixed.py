"""Layouts that keep one module per expert and tell the parts of a matrix apart by a suffix.

``<module><codes>``, ``<module><scale>`` and so on: most dialects are tables of such suffixes, with the dtypes that make
them recognisable. The shapes decide together with the dtypes; names alone never do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from truecast.checkpoint.header import BITS, TensorInfo
from truecast.layouts.base import Matrix, OutTensor, View, group_size


@dataclass(frozen=True, slots=True)
class Suffixes:
    """How one dialect names and types the parts of a matrix. The first dtype of a tuple is the one to write."""

    layout: str
    format: str
    codes: str
    codes_dtypes: tuple[str, ...]
    scale: str
    scale_dtypes: tuple[str, ...]
    global_scale: str | None = None
    global_shape: tuple[int, ...] = ()
    input_scale: str | None = None
    input_dtypes: tuple[str, ...] = ("F32",)
    shape: str | None = None
    shape_dtypes: tuple[str, ...] = ("I64", "I32")
    packed: int = 2
    """Elements along ``in`` that one item of the codes' dtype holds."""
    tile: tuple[int, int] | None = None
    """Rows and columns that share a scale, ragged at the edges; a 0 is the whole extent. None: the format's groups."""
    foreign: tuple[str, ...] = ()
    """Suffixes of parts that change what the codes mean; a module that has one is not of this layout."""

    def scale_shape(self, rows: int, cols: int) -> tuple[int, int]:
        """Shape of the scales of a ``[rows, cols]`` matrix."""
        tile = self.tile or (1, group_size(self.format))
        return -(-rows // (tile[0] or rows)), -(-cols // (tile[1] or cols))

    def splits(self, cols: int) -> bool:
        """Can so many columns be split into the format's groups? Four-bit groups know no ragged edge."""
        return self.tile is not None or cols % max(32, group_size(self.format)) == 0


def match(table: Suffixes, tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """The matrix whose codes ``tensor`` holds under this table, as a list of one; empty if dtype or shape do not fit."""
    if not tensor.name.endswith(table.codes) or tensor.dtype not in table.codes_dtypes or len(tensor.shape) != 2:
        return []
    module = tensor.name.removesuffix(table.codes)
    rows, cols = tensor.shape[0], tensor.shape[1] * table.packed
    scale = tensors.get(module + table.scale)
    if scale is None or scale.dtype not in table.scale_dtypes or not table.splits(cols):
        return []
    if scale.shape != table.scale_shape(rows, cols) or any(module + suffix in tensors for suffix in table.foreign):
        return []
    global_scale = scalar(tensors.get(module + table.global_scale), ("F32",)) if table.global_scale else None
    if table.global_scale and global_scale is None:
        return []
    shape = tensors.get(module + table.shape) if table.shape else None
    if table.shape and (shape is None or shape.dtype not in table.shape_dtypes or shape.shape != (2,)):
        return []
    input_scale = tensors.get(module + table.input_scale) if table.input_scale else None
    bias = tensors.get(module + ".bias")
    return [
        Matrix(
            name=module,
            layout=table.layout,
            rows=rows,
            cols=cols,
            codes=View(tensor),
            scale=View(scale),
            global_scale=global_scale,
            input_scale=scalar(input_scale, table.input_dtypes),
            bias=View(bias) if bias is not None and bias.shape == (rows,) and BITS[bias.dtype] >= 8 else None,
            shape=View(shape) if shape is not None else None,
        )
    ]


def scalar(tensor: TensorInfo | None, dtypes: tuple[str, ...]) -> View | None:
    """A view of a tensor of shape ``()`` or ``[1]`` and one of these dtypes; None for any other, or for none."""
    return View(tensor) if tensor is not None and tensor.dtype in dtypes and tensor.shape in ((), (1,)) else None


def emit(table: Suffixes, matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """Codes, scale, global scale, input scale (with ``activations``), shape and bias of each matrix in turn."""
    for matrix in matrices:
        piece = ((matrix,),)
        rows, cols = matrix.rows, matrix.cols
        codes_shape, scale_shape = (rows, cols // table.packed), table.scale_shape(rows, cols)
        yield OutTensor(matrix.name + table.codes, table.codes_dtypes[0], codes_shape, "codes", pieces=piece)
        yield OutTensor(matrix.name + table.scale, table.scale_dtypes[0], scale_shape, "scale", pieces=piece)
        if table.global_scale:
            name = matrix.name + table.global_scale
            yield OutTensor(name, "F32", table.global_shape, "global_scale", pieces=piece)
        if activations and table.input_scale:
            name = matrix.name + table.input_scale
            yield OutTensor(name, table.input_dtypes[0], table.global_shape, "input_scale", pieces=piece)
        if table.shape:
            yield OutTensor(matrix.name + table.shape, table.shape_dtypes[0], (2,), "shape", pieces=piece)
        if matrix.bias is not None:
            yield OutTensor(matrix.name + ".bias", matrix.bias.tensor.dtype, (rows,), "bias", pieces=piece)
