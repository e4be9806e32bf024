"""To FP8 (E4M3) with one scale for each tile of the matrix: BF16 rounded to nearest, MXFP4 without any rounding.

A *tile* is ``(rows, columns)`` that share a scale, ragged at the matrix's edges; 0 is the whole extent. So ``BLOCK`` is
DeepSeek's 128 x 128, ``CHANNEL`` one scale for each output channel, ``TENSOR`` a single one.

**BF16** (:func:`quantize`). ``scale = amax / 448`` in float32, at least 2^-126 (a GPU that flushes subnormals would
make it zero), and 1 for a tile of zeros. The code is the nearest E4M3 to the float32 quotient ``value / scale``, ties to
even. The quotient of amax is at most 448 (1 + 2^-23), below 464 where E4M3 would run into NaN; so nothing overflows.

**MXFP4** (:func:`exact_bases`, :func:`from_mxfp4`). A value is ``E2M1 * 2^k``, the scale a power of two ``2^base``: the
tile is exact where E4M3 holds every ``E2M1 * 2^(k - base)``. For each of the seven magnitudes these are the ``d = k - base``
of one interval, from 0.5's -8..9 to 6's -10..6; so each block's codes say which bases suit it. Exponents that lie up to
14 apart always fit, farther apart with fewer magnitudes in use. Blocks of zeros suit every base.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e2m1, e4m3, e8m0, exact, packing

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Tile = tuple[int, int]

BLOCK: Tile = (128, 128)
CHANNEL: Tile = (1, 0)
TENSOR: Tile = (0, 0)

MIN_SCALE_EXPONENT = -126
"""The smallest normal float32 is 2^-126; no scale is smaller."""

_INFINITY = np.uint16(0x7F80)  # BF16 bit patterns from here on are infinity and NaN
_STRIP = (128, 512)  # rows and columns worked on at a time, so that temporaries stay in the cache


@dataclass(frozen=True, slots=True)
class FP8Matrix:
    """A BF16 matrix cast to FP8. ``value = E4M3(code) * scale of its tile``.

    Shapes: codes ``[N, K]`` uint8; scales ``[ceil(N/rows), ceil(K/columns)]`` float32 of the tile. ``squared_error`` and
    ``squared_sum`` are sums over all elements of ``(value - result)^2`` and ``value^2``, float64, added in a fixed order.
    """

    codes: U8
    scales: F32
    squared_error: float
    squared_sum: float


def quantize(bits: U16, tile: Tile) -> FP8Matrix:
    """Cast a plain matrix. Shapes: BF16 bit patterns ``[N, K]`` uint16 -> see :class:`FP8Matrix`.

    Error bound: half a step of E4M3, ``|value - result| <= max(|value| * 2^-4, scale * 2^-10)``, and float32's rounding.
    Raises: ValueError for NaN or infinity, naming row and column, or for a matrix without elements.
    """
    if bits.ndim != 2 or 0 in bits.shape:
        raise ValueError(f"expected a matrix [N, K] with elements, got {list(bits.shape)}")
    rows, cols = tile[0] or bits.shape[0], tile[1] or bits.shape[1]
    scales = _scales(_largest(bits, rows, cols))
    codes = np.empty(bits.shape, dtype=np.uint8)
    errors: list[float] = []
    sums: list[float] = []
    for top in range(0, bits.shape[0], _STRIP[0]):
        below = slice(top, min(top + _STRIP[0], bits.shape[0]))
        of_row = scales[np.arange(below.start, below.stop) // rows] if rows % _STRIP[0] else scales[top // rows][None]
        for left in range(0, bits.shape[1], _STRIP[1]):
            right = slice(left, min(left + _STRIP[1], bits.shape[1]))
            scale = of_row if scales.shape[1] == 1 else of_row[:, np.arange(right.start, right.stop) // cols]
            codes[below, right], error, square = _round(bits[below, right], scale)
            errors += error.tolist()
            sums += square.tolist()
    return FP8Matrix(codes, scales, math.fsum(errors), math.fsum(sums))


def _largest(bits: U16, rows: int, cols: int) -> U16:
    """Magnitude bits of the largest element of each tile: BF16 patterns without sign are in the order of values."""
    magnitude = bits & np.uint16(0x7FFF)
    if rows == 1:
        by_row = magnitude
    else:
        starts = range(0, bits.shape[0], rows)
        by_row = np.stack([magnitude[start : start + rows].max(axis=0) for start in starts])
    if cols >= bits.shape[1]:
        largest = by_row.max(axis=1, keepdims=True)
    else:
        largest = np.maximum.reduceat(by_row, np.arange(0, bits.shape[1], cols), axis=1)
    if int(largest.max()) >= _INFINITY:
        row, column = divmod(int((magnitude >= _INFINITY).argmax()), bits.shape[1])
        raise ValueError(f"row {row}, column {column}: NaN or infinity, which has no FP8 code")
    return np.asarray(largest)


def _scales(largest: U16) -> F32:
    amax = _widen(largest)
    least = np.float32(2.0**MIN_SCALE_EXPONENT)
    return np.where(amax == 0, np.float32(1), np.maximum(amax / np.float32(e4m3.MAX), least)).astype(np.float32)


def _widen(bits: U16) -> F32:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _round(bits: U16, scale: F32) -> tuple[U8, NDArray[np.float64], NDArray[np.float64]]:
    """Codes of one strip, and for each of its columns the sums of squared errors and of squares.

    Shapes: bits ``[n, k]``, scale ``[n or 1, k or 1]`` -> ``[n, k]``, ``[k]``, ``[k]``.

    Rounding without a table: to a quotient in the binade of 2^e float32 adds ``anchor = 2^(e + 20)``, whose last bit is
    worth 2^(e - 3), a step of E4M3, and so rounds it to nearest even. Below 2^-6 all steps are 2^-9, as for e = -6. The
    sum's bits over those of the anchor count the steps: 8..16 in a normal binade, 0..8 in the subnormal one.
    """
    magnitude = _widen(bits & np.uint16(0x7FFF))
    quotient = magnitude / scale
    exponent = quotient.view(np.uint32) & np.uint32(0x7F800000)
    anchor_bits = np.maximum(exponent, np.uint32((127 + e4m3.MIN_NORMAL_POW2) << 23)) + np.uint32(20 << 23)
    anchor = anchor_bits.view(np.float32)
    total = quotient + anchor
    steps = total.view(np.uint32) - anchor_bits
    # the anchor's exponent field is e + 147, E4M3's is e + 7; the 8 steps of its hidden bit are none of the fraction
    code = (anchor_bits >> np.uint32(20)) + steps - np.uint32((140 << 3) + 8)
    sign = (bits >> np.uint16(8)).astype(np.uint8) & np.uint8(0x80)
    rounded = (total - anchor).astype(np.float64)
    exact_magnitude = magnitude.astype(np.float64)
    rounded *= scale
    rounded -= exact_magnitude
    np.square(rounded, out=rounded)
    np.square(exact_magnitude, out=exact_magnitude)
    return code.astype(np.uint8) | sign, _column_sums(rounded), _column_sums(exact_magnitude)


def _column_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over the rows, halving them again and again: the same additions on every machine."""
    while (n := len(values)) > 1:
        half = n // 2
        values[:half] += values[n - half :]
        values = values[: n - half]
    return np.asarray(values[0])


def _fitting() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    held = {float(v) for v in e4m3.VALUES[:0x7F]}
    fits = [[d for d in range(-20, 20) if float(e2m1.VALUES[code]) * 2.0**d in held] for code in range(1, 8)]
    assert all(len(ds) == ds[-1] - ds[0] + 1 for ds in fits)
    return np.array([ds[0] for ds in fits]), np.array([ds[-1] for ds in fits])


LOWEST, HIGHEST = _fitting()
"""For each magnitude code 1..7 the least and the greatest ``d`` at which E4M3 holds ``E2M1(code) * 2^d``. Index code - 1."""


def _mask_tables() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    lowest, highest = np.zeros(128, dtype=np.int32), np.zeros(128, dtype=np.int32)
    for mask in range(1, 128):
        present = [i for i in range(7) if mask >> i & 1]
        lowest[mask], highest[mask] = LOWEST[present].max(), HIGHEST[present].min()
    return lowest, highest


_MASK_LOWEST, _MASK_HIGHEST = _mask_tables()
_SMALLEST_D = -13  # 6 * 2^-13 is nearer to zero than to 2^-9, and so is all below


def _code_table() -> U16:
    """``[d - _SMALLEST_D, packed byte]``: the two E4M3 bytes, first element first, as a little-endian word."""
    exponents = np.arange(_SMALLEST_D, int(HIGHEST.max()) + 1)
    values = np.ldexp(e2m1.VALUES.astype(np.float64), exponents[:, None])
    codes = e4m3.encode_nearest_even(values)
    byte = np.arange(256)
    return (codes[:, byte & 15].astype(np.uint16) | codes[:, byte >> 4].astype(np.uint16) << np.uint16(8)).astype("<u2")


_CODES: U16 = _code_table()


def exact_bases(packed: U8, scales: U8, tile: Tile) -> tuple[I32, int]:
    """Exponent of each tile's scale, and how many elements E4M3 cannot hold under it.

    Shapes: packed ``[N, K/2]``, scales ``[N, K/32]`` E8M0 without byte 255 -> bases ``[tiles down, tiles across]`` int32.
    The tile's columns are a multiple of 32, or 0.

    The base is the least under which no value lies above E4M3's range, and at least -126. If any base makes a tile exact,
    this one does. Otherwise what is lost is at the small end, where the error is least. A tile of zeros: 0.
    """
    k = e8m0.exponents(scales).astype(np.int32)
    halves = exact.magnitude_masks(packed)
    masks = halves[:, 0::2] | halves[:, 1::2]
    never = np.iinfo(np.int32).min
    least = np.where(masks != 0, k - _MASK_HIGHEST[masks], never)
    rows, blocks = _tile_in_blocks(tile, scales)
    down, across = np.arange(0, scales.shape[0], rows), np.arange(0, scales.shape[1], blocks)
    bases = np.maximum.reduceat(np.maximum.reduceat(least, across, axis=1), down, axis=0)
    bases = np.where(bases == never, 0, np.maximum(bases, MIN_SCALE_EXPONENT)).astype(np.int32)
    d = k - _over_blocks(bases, tile, scales)
    lossy = (masks != 0) & (d < _MASK_LOWEST[masks])
    if not lossy.any():
        return bases, 0
    codes = packing.unpack_nibbles(packed.reshape(*scales.shape, 16)[lossy]) & 7
    lowest = np.concatenate([[never], LOWEST])
    return bases, int(np.count_nonzero(d[lossy][:, None] < lowest[codes]))


def from_mxfp4(packed: U8, scales: U8, bases: I32, tile: Tile) -> U8:
    """E4M3 codes under the scales ``2^base`` from :func:`exact_bases`; the nearest, ties to even, where none is exact.

    Shapes: packed ``[N, K/2]``, scales ``[N, K/32]``, bases ``[tiles down, tiles across]`` -> ``[N, K]`` uint8. Minus zero
    stays minus zero, and what is rounded to zero keeps its sign.
    """
    d = e8m0.exponents(scales).astype(np.int32) - _over_blocks(bases, tile, scales)
    row = (d.clip(_SMALLEST_D, int(HIGHEST.max())) - _SMALLEST_D).astype(np.uint16) << np.uint16(8)
    index = packed.reshape(*scales.shape, 16) | row[..., None]
    return _CODES.ravel()[index].view(np.uint8).reshape(packed.shape[0], -1)


def _tile_in_blocks(tile: Tile, scales: U8) -> tuple[int, int]:
    return tile[0] or scales.shape[0], tile[1] // 32 or scales.shape[1]


def _over_blocks(bases: I32, tile: Tile, scales: U8) -> I32:
    """The base of each block. Shape: ``[N, K/32]``, or ``[N, 1]`` where a tile is as wide as the matrix."""
    rows, blocks = _tile_in_blocks(tile, scales)
    down = bases[np.arange(scales.shape[0]) // rows]
    return np.asarray(down if bases.shape[1] == 1 else down[:, np.arange(scales.shape[1]) // blocks])
