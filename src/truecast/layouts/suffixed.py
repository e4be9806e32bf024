"""Layouts that keep one module per expert and tell the parts of a matrix apart by a suffix.

``<module><codes>``, ``<module><scale>`` and so on: four of the five dialects are tables of such suffixes, with the
dtypes that make them recognisable. The shapes decide together with the dtypes; names alone never do.
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


def match(table: Suffixes, tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """The matrix whose codes ``tensor`` holds under this table, as a list of one; empty if dtype or shape do not fit."""
    if not tensor.name.endswith(table.codes) or tensor.dtype not in table.codes_dtypes or len(tensor.shape) != 2:
        return []
    module = tensor.name.removesuffix(table.codes)
    rows, cols = tensor.shape[0], tensor.shape[1] * 2
    scale = tensors.get(module + table.scale)
    group = group_size(table.format)
    if scale is None or scale.dtype not in table.scale_dtypes or cols % 32 or scale.shape != (rows, cols // group):
        return []
    global_scale = _scalar(tensors.get(module + table.global_scale)) if table.global_scale else None
    if table.global_scale and global_scale is None:
        return []
    input_scale = _scalar(tensors.get(module + table.input_scale)) if table.input_scale else None
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
            input_scale=input_scale,
            bias=View(bias) if bias is not None and bias.shape == (rows,) and BITS[bias.dtype] >= 8 else None,
        )
    ]


def _scalar(tensor: TensorInfo | None) -> View | None:
    return View(tensor) if tensor is not None and tensor.dtype == "F32" and tensor.shape in ((), (1,)) else None


def emit(table: Suffixes, matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """Codes, scale, global scale, input scale (with ``activations``) and bias of each matrix, one after another."""
    for matrix in matrices:
        piece = ((matrix,),)
        rows, cols = matrix.rows, matrix.cols
        scale_shape = (rows, cols // group_size(table.format))
        yield OutTensor(matrix.name + table.codes, table.codes_dtypes[0], (rows, cols // 2), "codes", pieces=piece)
        yield OutTensor(matrix.name + table.scale, table.scale_dtypes[0], scale_shape, "scale", pieces=piece)
        if table.global_scale:
            name = matrix.name + table.global_scale
            yield OutTensor(name, "F32", table.global_shape, "global_scale", pieces=piece)
        if activations and table.input_scale:
            name = matrix.name + table.input_scale
            yield OutTensor(name, "F32", table.global_shape, "input_scale", pieces=piece)
        if matrix.bias is not None:
            yield OutTensor(matrix.name + ".bias", matrix.bias.tensor.dtype, (rows,), "bias", pieces=piece)
