"""The bytes of a quantized matrix as plain BF16."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from truecast.casts import to_bf16
from truecast.convert.floats import widen
from truecast.convert.into_fp8 import TILES
from truecast.convert.parts import Read
from truecast.convert.reading import Codes, read_global_scale, read_scale
from truecast.formats import e8m0
from truecast.formats.int4 import swap_forms
from truecast.layouts import LAYOUTS, format_of
from truecast.layouts.base import Matrix

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]

_ELEMENTS = 1 << 22
"""So many elements are decoded at a time: 32 MB of float64."""


def weight(matrix: Matrix, read: Read) -> U8:
    """The values, correctly rounded. A row of bytes for each row of the matrix."""
    return np.concatenate([values for values, _ in _decoded(matrix, read)]).view(np.uint8)


def inexact_elements(matrix: Matrix, read: Read) -> int:
    """How many values BF16 cannot hold. MXFP4 codes are read only where the scales leave that open."""
    if format_of(matrix) == "mxfp4":
        scale = read_scale(matrix, read)
        if int(scale.max()) - e8m0.BIAS < to_bf16.OVERFLOW_EXPONENT:
            return 0
    return sum(count for _, count in _decoded(matrix, read))


def _decoded(matrix: Matrix, read: Read) -> Iterator[tuple[U16, int]]:
    """Rows of values and the number of inexact ones among them, in chunks."""
    kind = format_of(matrix)
    codes, scale = Codes(matrix, read).packed(), read_scale(matrix, read)
    global_scale = read_global_scale(matrix, read) if kind == "nvfp4" else None
    tile = TILES[LAYOUTS[matrix.layout].DIALECT] if kind == "fp8" else (1, 0)
    down = tile[0]
    step = max(down, _ELEMENTS // matrix.cols // down * down)
    for row in range(0, matrix.rows, step):
        some = codes[row : row + step]
        scales = scale[row // down : -(-min(row + step, matrix.rows) // down)]
        if kind == "mxfp4":
            yield to_bf16.from_mxfp4(some, scales)
        elif kind == "nvfp4":
            assert global_scale is not None
            yield to_bf16.from_nvfp4(some, scales, global_scale, matrix.layout.endswith("compressed-tensors"))
        elif kind == "w4afp8":
            two = swap_forms(some) if matrix.layout.endswith("compressed-tensors") else some
            yield to_bf16.from_int4(two, widen(scales, matrix.scale.tensor.dtype))
        else:
            yield to_bf16.from_fp8(some, widen(scales, matrix.scale.tensor.dtype), tile)
