"""Half blocks that had to be requantized: had they to be, how far are they off, is it the least possible?

All of it by trying every positive, finite E4M3 scale there is: no table or rule of the converter is believed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e2m1, e4m3
from truecast.verify.canonical import ValueTable

U8 = NDArray[np.uint8]
Index = tuple[U8, U8]
"""Scale bytes ``[n, 1]`` and codes ``[n, 16]``: indices into a value table."""

_SCALES = np.ldexp(e4m3.MANTISSA[1:0x7F].astype(np.float64), e4m3.EXPONENT[1:0x7F].astype(np.int32))
_MAGNITUDES = e2m1.HALVES[:8].astype(np.float64) / 2
_CHUNK = 256  # bounds the temporaries of 126 x 16 float64 a half block


def best_possible(codes: U8, d: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Could ``code * 2^d`` be exact as ``code * e4m3``, and if not, what is the least sum of squared differences?

    Shapes: codes ``[n, 16]``, d ``[n]`` -> ``[n]`` and ``[n]``, in units of the global scale. float64 holds all values
    and their differences are zero only if they are equal, so the first answer is exact.
    """
    exact, least = np.empty(len(d), np.bool_), np.empty(len(d), np.float64)
    for start in range(0, len(d), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        values = np.ldexp(_MAGNITUDES[codes[chunk] & 7], d[chunk, None])[:, None, :]
        nearest = np.broadcast_to(values, (len(values), _SCALES.size, 16))
        for magnitude in _MAGNITUDES[1:]:
            nearest = np.minimum(nearest, np.abs(values - magnitude * _SCALES[:, None]))
        exact[chunk] = (nearest == 0).all(axis=2).any(axis=1)
        least[chunk] = np.square(nearest).sum(axis=2).min(axis=1)
    return exact, least


def own_errors(codes: U8, d: NDArray[np.int64], out_codes: U8, out_scale: U8) -> NDArray[np.float64]:
    """Sum of squared differences of the magnitudes as stored, in the units of :func:`best_possible`. Shape: ``[n]``."""
    scale = np.ldexp(e4m3.MANTISSA[out_scale].astype(np.float64), e4m3.EXPONENT[out_scale].astype(np.int32))
    before = np.ldexp(_MAGNITUDES[codes & 7], d[:, None])
    return np.asarray(np.square(_MAGNITUDES[out_codes & 7] * scale[:, None] - before).sum(axis=1))


def squared_errors(source: ValueTable, i: Index, out: ValueTable, j: Index) -> NDArray[np.float64]:
    """Sum of squared differences of each half block, in weight units. Shape: ``[n]``.

    Computed relative to the largest exponent, so that the squares neither overflow nor vanish on the way; the result
    may be infinite or zero where float64 ends.
    """
    before, after = source.to_float64()[i], out.to_float64()[j]
    largest = np.maximum(np.abs(before), np.abs(after)).max(axis=1)
    unit = np.frexp(largest)[1]
    difference = np.ldexp(after, -unit[:, None]) - np.ldexp(before, -unit[:, None])
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(np.square(difference).sum(axis=1), 2 * unit))


def wrongly_rounded(source: ValueTable, i: Index, out: ValueTable, j: Index) -> NDArray[np.int64]:
    """First element of each half block whose code is not the nearest to the source's value under the block's scale.

    Ties go to the even code, beyond 6 saturates, the sign is kept. Shape: ``[n]``, -1 where every code is the nearest.
    """
    grid = np.abs(out.to_float64()[j[0], np.arange(8)[None, :]])[:, None, :]
    before = np.minimum(np.abs(source.to_float64()[i])[:, :, None], grid[:, :, -1:])
    distance = np.abs(before - grid)
    nearest = distance == distance.min(axis=2, keepdims=True)
    even = nearest & (np.arange(8) % 2 == 0)
    best = np.where(even.any(axis=2), even.argmax(axis=2), nearest.argmax(axis=2))
    signs = (i[1] ^ j[1]) & e2m1.SIGN_BIT
    wrong = (best != (j[1] & 7)) | (signs != 0)
    return np.where(wrong.any(axis=1), wrong.argmax(axis=1), -1)
