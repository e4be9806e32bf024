"""Findings about the scales of INT4 groups and FP8 blocks, which are floats of 16 or 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from truecast.layouts import LAYOUTS
from truecast.layouts.base import Matrix
from truecast.verify.check.blocks import add_scales
from truecast.verify.check.findings import Collector, Place
from truecast.verify.scaled import GROUP, TILE

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

_SMALLEST_NORMAL = 2.0**-126
_FP8 = "engines scale the products of a block by it: a negative one turns the signs of the block, which no writer means"

_add = partial(add_scales, what="scales")


def check_factors(found: Collector, matrix: Matrix, factors: F32, codes: Callable[[], U8]) -> None:
    """Judge the scales of one matrix; ``codes`` reads its stored codes, where the scales alone do not decide.

    Shape: one float32 for each group, block or row, as the tensor has them.
    """
    int4 = LAYOUTS[matrix.layout].FORMAT == "w4afp8"
    name = "group scale" if int4 else "block scale"
    finite = np.isfinite(factors)
    _add(found, "scale-nan", matrix, ~finite, f"the {name} is NaN or infinite")
    zero = factors == 0
    if zero.any():
        live = _live(matrix, codes(), factors.shape)
        _add(found, "scale-zero", matrix, zero & live, f"the {name} is zero, the codes under it are not")
        _add(found, "scale-zero", matrix, zero & ~live, f"the {name} is zero, and so are the codes", harmless=True)
    small = finite & ~zero & (np.abs(factors) < _SMALLEST_NORMAL)
    _add(found, "factor-subnormal", matrix, small, f"the {name} is below 2^-126, a subnormal")
    if int4:
        wide = finite & (factors.view(np.uint32) & 0xFFFF != 0)
        _add(found, "scale-not-bf16", matrix, wide, "BF16 does not hold the group scale")
    else:
        _add(found, "scale-negative", matrix, finite & (factors < 0), "the block scale is negative", why=_FP8)
    alike = factors.min() == factors.max() and (int4 or factors.flat[0] == 1)  # FP8 blocks are often alike
    if alike and not _live(matrix, codes(), factors.shape).any():
        place = Place(matrix.codes.tensor.file, matrix.codes.tensor.name, matrix.name)
        found.add("matrix-all-zero", place, f"all {matrix.rows} x {matrix.cols} weights are zero")


def _live(matrix: Matrix, codes: U8, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Under which scales there is a code other than zero. Shape: that of the scales."""
    layout = LAYOUTS[matrix.layout]
    if layout.FORMAT == "w4afp8":
        zero = np.uint8(0x88 if layout.DIALECT == "compressed-tensors" else 0)
        return np.asarray((codes != zero).reshape(*shape, GROUP // 2).any(axis=2))
    nonzero = (codes & 0x7F) != 0
    high, wide = (TILE, TILE) if layout.DIALECT == "deepseek" else (1, matrix.cols)
    rows = np.logical_or.reduceat(nonzero, np.arange(0, matrix.rows, high), axis=0)
    return np.asarray(np.logical_or.reduceat(rows, np.arange(0, matrix.cols, wide), axis=1))
