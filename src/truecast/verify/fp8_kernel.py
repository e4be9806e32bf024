"""The compiled loop that judges FP8 codes against the plain BF16 values that they were made of.

Midpoints between neighbouring E4M3 numbers have five bits: their products with a float32 scale are exact in float64, and
so is every comparison here. This module needs numba: import it only where there is such a matrix.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from truecast.compiled import compiled
from truecast.formats import e4m3

_MAGNITUDES = e4m3.VALUES[:0x7F].astype(np.float64)
_LAST = 0x7E


@njit(inline="always")
def _between(value: float, code: int, unit: float, even: bool) -> bool:
    """Is E4M3 magnitude ``code`` the nearest to ``value / unit``? Of two equally near: the even one, or either."""
    if code > 0:
        low = (_MAGNITUDES[code] + _MAGNITUDES[code - 1]) * unit
        if 2.0 * value < low or (2.0 * value == low and even and code & 1):
            return False
    if code < _LAST:
        high = (_MAGNITUDES[code] + _MAGNITUDES[code + 1]) * unit
        if 2.0 * value > high or (2.0 * value == high and even and code & 1):
            return False
    return True


@compiled
def judge_codes(
    values: NDArray[np.float32],
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    tile: int,
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> None:
    """Judge some rows under one row of block scales.

    Shapes: values and codes ``[n, K]`` (finite, no NaN code), scales ``[ceil(K / tile)]``. Adds to ``counts``: codes that
    are not the E4M3 nearest to the float32 quotient of value and scale, with its sign; codes nearest in exact arithmetic;
    and sets places 2 and 3 to row and column of the first of the former. Adds to ``sums``: squared errors, squares.
    """
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            value, scale = values[row, column], scales[column // tile]
            code = int(codes[row, column])
            size, magnitude = abs(np.float64(value)), code & 0x7F
            quotient = np.float64(np.float32(abs(value)) / scale)
            same_sign = (code >= 0x80) == bool(np.signbit(value))
            if not (same_sign and _between(quotient, magnitude, 1.0, True)):
                if counts[0] == 0:
                    counts[2], counts[3] = row, column
                counts[0] += 1
            if (same_sign or size == 0.0 or magnitude == 0) and _between(size, magnitude, np.float64(scale), False):
                counts[1] += 1
            stored = _MAGNITUDES[magnitude] * np.float64(scale)
            off = size - stored if same_sign else size + stored
            sums[0] += off * off
            sums[1] += size * size
