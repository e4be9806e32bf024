"""When an MXFP4 block is exact as NVFP4, and which global scale makes it so.

An MXFP4 block holds 32 E2M1 codes and one scale ``2^k``. NVFP4 holds the same values as ``code * block * 2^m`` with one
E4M3 block scale per 16 codes (a *half block*) and one float32 global scale, which truecast keeps a power of two. With
``d = k - m``:

* **Window.** E4M3 holds ``2^d`` exactly for -9 <= d <= 8, so the codes stay as they are.
* **Renormalisation.** Outside the window the block scale stops at ``2^-9`` or ``2^8`` and the codes must take up the
  rest. Halving works while every magnitude has its half among the E2M1 magnitudes: {1,2,3,4,6} once, {2,4,6} twice,
  {4} three times; doubling likewise {.5,1,1.5,2,3}, {.5,1,1.5}, {.5}. So d may reach from -12 to +11, depending on the
  codes. Block scales that are no power of two add nothing (a test enumerates all of them).
* **Zero.** A half block whose 16 codes are all (plus or minus) zero is exact under any finite positive scale, whatever
  its source scale byte says, so it has no say in the choice of m.

The set of magnitudes in a half block is a 7-bit *mask*: bit ``i`` stands for magnitude code ``i + 1``.
How far a half block can be shifted is its *reach*, ``(down, up)``, each 0..3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e2m1, e4m3

U8 = NDArray[np.uint8]

MIN_GLOBAL_EXPONENT = -126
"""A float32 global scale below 2^-126 is subnormal, and GPUs that flush subnormals turn it into zero."""

MAX_SHIFT = 3

WINDOW = e4m3.MAX_POW2 - e4m3.MIN_POW2
"""Exponents may lie this far apart (17) and still all be exact with unchanged codes."""


def _shifted(code: int, shift: int) -> int | None:
    """Magnitude code of ``magnitude * 2^shift``, or None where E2M1 does not hold it."""
    halves = int(e2m1.HALVES[code]) * 2.0**shift
    hits = np.flatnonzero(halves == e2m1.HALVES)
    return int(hits[0]) if hits.size else None


def _reach_table(direction: int) -> U8:
    table = np.zeros(128, dtype=np.uint8)
    for mask in range(1, 128):
        codes = [i + 1 for i in range(7) if mask >> i & 1]
        for shift in range(1, MAX_SHIFT + 1):
            if all(_shifted(c, direction * shift) is not None for c in codes):
                table[mask] = shift
    return table


REACH_DOWN: U8 = _reach_table(-1)
"""How often the codes of a half block with this mask can be halved, 0..3. Mask 0 (all zero) is not asked for."""

REACH_UP: U8 = _reach_table(+1)
"""How often they can be doubled, 0..3."""


def _shift_code_table() -> U8:
    table = np.full((2 * MAX_SHIFT + 1, 16), 0xFF, dtype=np.uint8)
    for shift in range(-MAX_SHIFT, MAX_SHIFT + 1):
        for code in range(16):
            shifted = _shifted(code & 7, shift)
            if shifted is not None:
                table[shift + MAX_SHIFT, code] = shifted | (code & e2m1.SIGN_BIT)
    return table


SHIFT_CODE: U8 = _shift_code_table()
"""``SHIFT_CODE[shift + 3, code]`` is the code of ``value * 2^shift`` with its sign, 0xFF where there is none."""


def _byte_mask_table() -> U8:
    bit = np.array([0] + [1 << i for i in range(7)], dtype=np.uint8)
    byte = np.arange(256)
    return np.asarray(bit[byte & 7] | bit[(byte >> 4) & 7], dtype=np.uint8)


_BYTE_MASK: U8 = _byte_mask_table()


def magnitude_masks(packed: U8) -> U8:
    """Mask of the magnitudes in each half block, 0 = all zero. Shapes: ``[..., 8h]`` packed -> ``[..., h]`` uint8."""
    per_byte = _BYTE_MASK[packed].reshape(*packed.shape[:-1], packed.shape[-1] // 8, 8)
    return np.asarray(np.bitwise_or.reduce(per_byte, axis=-1), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class GlobalExponent:
    """The chosen ``m`` of a global scale ``2^m``, and how many live half blocks cannot be exact under it."""

    m: int
    inexact_half_blocks: int


def preferred_exponent(k_max: int) -> int:
    """``m = k_max - 8``, raised to -126: the largest block scale sits at the top of E4M3.

    Exact for every block whose ``k`` is at most 17 below ``k_max``. It keeps the most block scales in E4M3's normal
    range, and it is what NVIDIA Model-Optimizer chooses, so files agree where both are exact.
    """
    return max(k_max - e4m3.MAX_POW2, MIN_GLOBAL_EXPONENT)


def reach_histogram(exponents: NDArray[np.integer], masks: U8) -> NDArray[np.int64]:
    """Live half blocks by exponent and reach; histograms of fused twins add up.

    Shapes: exponents ``[...]`` int (-127..127), masks ``[...]`` uint8 -> ``[255, 4, 4]`` counts, index
    ``[k + 127, down, up]``. All-zero half blocks (mask 0) are left out.
    """
    live = masks != 0
    k, mask = exponents[live].astype(np.int64) + 127, masks[live]
    flat = (k * 4 + REACH_DOWN[mask]) * 4 + REACH_UP[mask]
    return np.bincount(flat, minlength=255 * 16).reshape(255, 4, 4).astype(np.int64)


def choose_global_exponent(histogram: NDArray[np.int64]) -> GlobalExponent:
    """Choose m for one matrix, or for fused twins together.

    Shapes: ``[255, 4, 4]`` counts from :func:`reach_histogram`.

    If some m makes every live half block exact, the one nearest ``preferred_exponent(k_max)`` is taken (the lower of
    two equally near). Otherwise the smallest m at which no half block lies *above* its reach: what is lost is then
    only at the small end, where the absolute error is least. Clipping a large block to save several small ones would
    lose fewer blocks and far more of the weight. No live half block: m = 0.
    """
    k_index, down, up = np.nonzero(histogram)
    if not k_index.size:
        return GlobalExponent(0, 0)
    k = k_index - 127
    lowest = k - e4m3.MAX_POW2 - up  # m may not be lower, or this half block overflows the block scale
    highest = k - e4m3.MIN_POW2 + down  # nor higher, or it underflows
    floor = max(int(lowest.max()), MIN_GLOBAL_EXPONENT)
    if int(highest.min()) >= floor:
        m = min(max(preferred_exponent(int(k.max())), floor), int(highest.min()))
        return GlobalExponent(m, 0)
    return GlobalExponent(floor, count_inexact(histogram, floor))


def count_inexact(histogram: NDArray[np.int64], m: int) -> int:
    """How many live half blocks cannot be exact under global scale 2^m. Shape: ``[255, 4, 4]``."""
    k_index, down, up = np.nonzero(histogram)
    d = k_index - 127 - m
    inexact = (d < e4m3.MIN_POW2 - down) | (d > e4m3.MAX_POW2 + up)
    return int(histogram[k_index, down, up][inexact].sum())
