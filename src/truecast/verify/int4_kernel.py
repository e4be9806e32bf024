"""The compiled loop that judges every group of an INT4 matrix against the MXFP4 matrix that it was made of.

All decisions are taken in integers; float64 only adds up the figures. Within a group whose scale is a normal BF16
``s = (-1)^n * m * 2^e`` (128 <= m <= 255) everything is counted in units of half an ulp, ``u = 2^(e-1)``: then ``|s|`` is
``S = 2m``, its neighbours are whole numbers too (``2m + 2``, and ``2m - 2`` or, at m = 128, 255), and a value
``h/2 * 2^k`` is ``V = h * 2^(k-e)``.

* ``|v| < |s|/4`` has code 0 under the scale and both its neighbours, so it has no say in which of them is best; these
  are all the values with a ``V`` that is no whole number.
* ``|v| > 2^26 |s|`` is clipped so hard that the next larger scale is better whatever the other 127 values (and
  weights up to 65535) say: clipping costs at least ``7 * 2 * 2V`` less, the others at most ``127 * 65535 * (S/2 + 1)^2``
  more.
* For all others, the difference of the squared errors under two scales is a sum of ``(Sq - S'q')(2V - Sq - S'q')``, of at
  most 2^40 each, times weights that add up to less than 2^23.

Values of one block, magnitude and sign are judged once, whatever their number. This module needs numba: import it only
where there is such a matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.compiled import compiled

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

GROUPS, EXACT, ZERO, NEGATIVE, NEAREST, UNBEATEN, OTHER_SCALES, ILLEGAL, WRONG_CODES, BEATEN, MIRRORED, ODD_ZERO = (
    range(12)
)
"""Places in ``counts``. The last five come with a first place each, in ``firsts``."""

TALLIES = 12
BINS = 64
"""Groups by signal-to-noise ratio in whole dB; the last bin holds all beyond it."""

ONE = 0x3F800000
_HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12], dtype=np.int64)
_POWERS = np.ldexp(1.0, np.arange(-560, 561))
_P0 = 560


@compiled
def _note(counts: I64, firsts: I64, kind: int, row: int, column: int, more: int) -> None:
    if counts[kind] == 0:
        firsts[kind, 0], firsts[kind, 1] = row, column
    counts[kind] += more


@compiled
def _nearest(v: int, s: int) -> int:
    """Nearest whole number to ``v / s``, of two equally near the even one; 9 stands for all from 9 on."""
    if v >= 9 * s:
        return 9
    q = int(v / s + 0.5)
    rest = 2 * (v - s * q)
    if rest > s or (rest == s and q & 1):
        return q + 1
    if rest < -s or (rest == -s and q & 1):
        return q - 1
    return q


@compiled
def _moved(v: int, s: int, q: int) -> int:
    """The nearest whole number to ``v / s``, given one that is nearest or next to it; not beyond 9."""
    rest = 2 * (v - s * q)
    if rest > s:
        return q + 1 if q < 9 else q
    if rest < -s:
        return q - 1
    return q


@compiled
def _difference(v: int, s: int, q: int, other: int, p: int) -> int:
    """Squared error of ``p * other`` less that of ``q * s``."""
    return (s * q - other * p) * (2 * v - s * q - other * p)


@compiled
def _rivals(m: int, e: int, negative: bool, exponents: I64, weight: I64) -> tuple[bool, bool]:
    """Does a neighbour of the scale beat it, and does the scale with the other sign? Best codes everywhere.

    A scale so large that every code is 0 is beaten by the largest magnitude, unless no normal scale gives another code.
    Shapes: exponents ``[4]`` of the blocks, weight ``[64]`` (block, code) summed over the group's values.
    """
    s = 2 * m
    up, down = s + 2, (s - 2 if m > 128 else 255)
    more_up, more_down, more_mirrored = 0, 0, 0
    reached, reachable = False, False
    for b in range(4):
        d = exponents[b] - e
        for magnitude in range(1, 8):
            plus, minus = weight[b * 16 + magnitude], weight[b * 16 + 8 + magnitude]
            if plus + minus == 0:
                continue
            reachable |= exponents[b] > -126 or _HALVES[magnitude] << (exponents[b] + 127) > 2
            if d < 3:
                continue
            if d > 36:
                return True, False
            v = _HALVES[magnitude] << d
            if 4 * v < s:
                continue
            if v > s << 26:
                return True, False
            if negative:
                plus, minus = minus, plus  # now the sign of v / s
            q = _nearest(v, s)
            reached |= q > 0
            q_up, q_down = _moved(v, up, q), _moved(v, down, q)
            a, b_up, b_down = min(q, 7), min(q_up, 7), min(q_down, 7)
            more_up += plus * _difference(v, s, a, up, b_up)
            more_down += plus * _difference(v, s, a, down, b_down)
            z, z_up, z_down = min(q, 8), min(q_up, 8), min(q_down, 8)
            more_up += minus * _difference(v, s, z, up, z_up)
            more_down += minus * _difference(v, s, z, down, z_down)
            if q > 7:
                more_mirrored += (plus - minus) * _difference(v, s, 7, s, 8)
    if not reached:
        return reachable, False
    has_up, has_down = not (m == 255 and e == 120), not (m == 128 and e == -133)
    return (has_up and more_up < 0) or (has_down and more_down < 0), more_mirrored < 0


@compiled
def _group_errors(
    row: int, first: int, packed: Any, out: Any, factor: float, offset: int, exponents: I64, unit: int
) -> tuple[int, int, float]:
    """Element by element: codes that are not nearest, the first of them, and the squared error in units of ``4^unit``.

    ``factor``: the scale in units of ``2^unit``, of at most 24 bits; products with a code or half a code are exact.
    """
    wrong, where, error = 0, -1, 0.0
    for j in range(64):
        source, stored = packed[row, first + j], out[row, first + j] ^ offset
        power = _POWERS[exponents[j >> 4] - 1 - unit + _P0]
        for half in range(2):
            code = (source >> (4 * half)) & 15
            q = (((stored >> (4 * half)) & 15) ^ 8) - 8
            v = _HALVES[code & 7] * power
            if code >= 8:
                v = -v
            error += (v - q * factor) * (v - q * factor)
            t = v if factor > 0 else -v
            s = abs(factor)
            if (q > -8 and 2 * t < (2 * q - 1) * s) or (q < 7 and 2 * t > (2 * q + 1) * s):
                if wrong == 0:
                    where = 2 * j + half
                wrong += 1
    return wrong, where, error


@compiled
def judge_groups(
    packed: Any,
    scales: Any,
    out: Any,
    offset: int,
    out_scales: Any,
    weights: I64,
    weighted: bool,
    counts: I64,
    sums: F64,
    firsts: I64,
    histogram: I64,
) -> None:
    """Judge all groups of some rows, adding to the last four arguments.

    Shapes: packed and out ``[n, K/2]`` uint8, low nibble first; ``out ^ offset`` is two's complement; scales
    ``[n, K/32]`` uint8 without NaN; out_scales ``[n, K/128]`` uint32, bits of float32; weights ``[K]`` 1..65535, used if
    ``weighted``; counts and firsts ``[12]`` and ``[12, 2]``; sums ``[2]``: squared error, squared sum; histogram ``[64]``.
    ``firsts`` are rows and columns of this piece.
    """
    tally, weight = np.zeros(64, np.int64), np.zeros(64, np.int64)
    good, tied = np.zeros(64, np.int64), np.zeros(64, np.int64)
    exponents = np.zeros(4, np.int64)
    for row in range(out_scales.shape[0]):
        for group in range(out_scales.shape[1]):
            first = group * 64
            bits = int(out_scales[row, group])
            field, fraction, negative = (bits >> 23) & 255, bits & 0x7FFFFF, bits >> 31 != 0
            counts[GROUPS] += 1
            tally[:] = 0
            for b in range(4):
                exponents[b] = int(scales[row, 4 * group + b]) - 127
                for j in range(first + 16 * b, first + 16 * b + 16):
                    byte = packed[row, j]
                    tally[16 * b + (byte & 15)] += 1
                    tally[16 * b + (byte >> 4)] += 1
            energy, live = 0.0, 0
            for b in range(4):
                power = _POWERS[2 * exponents[b] - 2 + _P0]
                for magnitude in range(1, 8):
                    number = tally[16 * b + magnitude] + tally[16 * b + 8 + magnitude]
                    live += number
                    energy += number * float(_HALVES[magnitude] * _HALVES[magnitude]) * power
            sums[1] += energy
            if field == 255 or bits & 0x7FFFFFFF == 0:
                _note(counts, firsts, ILLEGAL, row, group * 128, 1)
                continue
            if negative:
                counts[NEGATIVE] += 1
            if live == 0:
                counts[ZERO] += 1
                if bits != ONE:
                    _note(counts, firsts, ODD_ZERO, row, group * 128, 1)

            bf16 = fraction & 0xFFFF == 0 and field > 0
            wrong, where, error = 0, -1, 0.0
            if not bf16:
                counts[OTHER_SCALES] += 1
                unit = max(field, 1) - 127 - 23
                mantissa = fraction | (0x800000 if field else 0)
                factor = -float(mantissa) if negative else float(mantissa)
                wrong, where, error = _group_errors(row, first, packed, out, factor, offset, exponents, unit)
                error *= _POWERS[2 * unit + _P0]
                if error == 0:
                    counts[UNBEATEN] += 1
                else:
                    _note(counts, firsts, BEATEN, row, group * 128, 1)
            else:
                m, e = 128 | (fraction >> 16), field - 127 - 7
                s = 2 * m
                for b in range(4):
                    d = exponents[b] - e
                    power = _POWERS[d + _P0]
                    good[16 * b] = tied[16 * b] = good[16 * b + 8] = tied[16 * b + 8] = 0
                    for magnitude in range(1, 8):
                        v, near, other = 0, 0, 0
                        if d > 25:
                            near = other = 9
                        elif d >= 3:
                            v = _HALVES[magnitude] << d
                            near = _nearest(v, s)
                            other = near
                            rest = 2 * (v - s * near)
                            if rest == s:
                                other = near + 1
                            elif rest == -s:
                                other = near - 1
                        value = float(_HALVES[magnitude]) * power
                        for sign in range(2):
                            place = 16 * b + 8 * sign + magnitude
                            flip = (sign == 1) != negative
                            cap = 8 if flip else 7
                            q, p = min(near, cap), min(other, cap)
                            good[place] = -q & 15 if flip else q
                            tied[place] = -p & 15 if flip else p
                            if tally[place]:
                                error += tally[place] * (value - s * q) * (value - s * q)
                for b in range(4):
                    for j in range(first + 16 * b, first + 16 * b + 16):
                        byte, stored = packed[row, j], out[row, j] ^ offset
                        place, code = 16 * b + (byte & 15), stored & 15
                        wrong += code != good[place] and code != tied[place]
                        place, code = 16 * b + (byte >> 4), stored >> 4
                        wrong += code != good[place] and code != tied[place]
                if wrong:
                    factor = -float(s) if negative else float(s)
                    wrong, where, error = _group_errors(row, first, packed, out, factor, offset, exponents, e - 1)
                error *= _POWERS[2 * e - 2 + _P0]

                beaten, mirrored = False, False
                if live:
                    if weighted:
                        weight[:] = 0
                        for j in range(64):
                            byte = packed[row, first + j]
                            weight[16 * (j >> 4) + (byte & 15)] += weights[2 * (first + j)]
                            weight[16 * (j >> 4) + (byte >> 4)] += weights[2 * (first + j) + 1]
                        beaten, mirrored = _rivals(m, e, negative, exponents, weight)
                    elif error:
                        beaten, mirrored = _rivals(m, e, negative, exponents, tally)
                if beaten:
                    _note(counts, firsts, BEATEN, row, group * 128, 1)
                else:
                    counts[UNBEATEN] += 1
                if mirrored:
                    _note(counts, firsts, MIRRORED, row, group * 128, 1)

            counts[NEAREST] += 128 - wrong
            if wrong:
                _note(counts, firsts, WRONG_CODES, row, group * 128 + where, wrong)
            sums[0] += error
            if error == 0:
                counts[EXACT] += 1
            elif live:
                decibels = 10 * np.log10(energy / error)
                histogram[min(max(int(np.floor(decibels)), 0), BINS - 1)] += 1
