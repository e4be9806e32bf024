"""The search of :mod:`truecast.casts.int4` on the CPU, compiled by numba: one pass over the rows, no temporaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from truecast.casts.int4_steps import CHANGES, CODES, HIGH, INTERVALS, LIVE, LOW, ORDER, START
from truecast.compiled import compiled
from truecast.formats import e2m1

_HALVES = e2m1.HALVES[:8].astype(np.int64)
_PLACE = np.array([99] + [ORDER[2 * int(h)] for h in _HALVES[1:]], dtype=np.int64)  # 2^0 is V = 4, that is 2 halves
_LIVE = np.array([*LIVE, 0], dtype=np.int64)
_CHANGED = (CHANGES[:, :, 0] < len(LIVE)).sum(axis=1)
_CHANGES = np.stack(
    [CHANGES[:, :, 0], 2 * CHANGES[:, :, 1] + 1], axis=-1
)  # what q^2 grows by on the way from q to q + 1
_FIRST_PRODUCT = START * np.array(LIVE, dtype=np.int64)
_FIRST_SQUARE = START * START
_CODES = CODES.astype(np.int64)
_BYTES = np.arange(256)


def _counts_of(sign: int) -> np.ndarray:
    """For each packed byte, a word with a one in the byte of every code of this sign that it holds."""
    words = np.zeros(256, np.uint64)
    for code in (_BYTES & 15, _BYTES >> 4):
        words += np.where(code >> 3 == sign, np.uint64(1) << (8 * (code & 7)).astype(np.uint64), np.uint64(0))
    return words


_COUNT_PLUS, _COUNT_MINUS = _counts_of(0), _counts_of(1)
_TWO = np.ldexp(1.0, np.arange(-640, 641))
_ZERO = 640

DEPTH = 5
"""Without weights the best scale lies above a 32nd of the largest magnitude: the binades -2..-5 relative to it."""
DEPTH_WEIGHTED = 16
"""With 16-bit weights it lies above a 2^14.6th of it."""
_BINS = 2 * DEPTH_WEIGHTED + 12
_OFFSET = 2 * DEPTH_WEIGHTED + 1
_ENERGY = np.array([(1.0 + 1.25 * (i % 2 == 0)) * 4.0 ** ((i - _OFFSET) // 2) for i in range(_OFFSET + 2)])
"""Square of each magnitude that is counted, in units of 4^base: the largest are 1 and 1.5."""
_UNCOUNTED = 128 * 65535 * 2.0**-33
"""No less than what magnitudes too small to be counted add to that."""
_NOTHING = -(1 << 20)  # the place of the largest magnitude where there is none
_ONE = 0x3F80
_LEAST = -126  # exponent of the smallest normal BF16


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return compiled(function, error_model="numpy", boundscheck=False)


@_compiled
def quantize(packed, scales, weights, method, negative, depth, codes, out_scales, errors, energies):
    """Quantize rows of groups.

    Shapes: packed ``[N, K/2]``, scales ``[N, K/32]`` uint8, weights ``[K]`` int64 (all 1: unweighted); method 0 exact,
    1 signed, 2 amax; negative: may scales be negative; depth as above; results codes ``[N, K/2]`` uint8, out_scales
    ``[N, K/128]`` BF16 bits, errors and energies ``[N, K/128]`` float64.
    """
    counts = np.zeros((4, 2, 8), np.int64)
    plus = np.zeros(_BINS, np.int64)
    minus = np.zeros(_BINS, np.int64)
    k = np.zeros(4, np.int64)
    table = np.zeros(16, np.uint8)
    for row in range(packed.shape[0]):
        for group in range(out_scales.shape[1]):
            data = packed[row, group * 64 : group * 64 + 64]
            new = codes[row, group * 64 : group * 64 + 64]
            for block in range(4):
                k[block] = np.int64(scales[row, group * 4 + block]) - 127
            top = _count(data, k, counts)
            if top == _NOTHING:
                out_scales[row, group], errors[row, group], energies[row, group] = _ONE, 0.0, 0.0
                new[:] = 0
                continue
            base = top >> 1  # the largest magnitude is 1 or 1.5 times 2^base
            if method == 0:
                if depth == DEPTH:
                    energy = _histogram(counts, k, base, plus, minus)
                else:
                    energy = _weigh(data, weights[group * 128 : group * 128 + 128], k, base, plus, minus)
                mantissa, e, sign = _search(plus, minus, base, depth, negative, energy)
            elif method == 1:
                mantissa, e, sign = 192 if top & 1 else 128, -3, _has_positive(counts, k, top)
            else:
                mantissa, e, sign = 219 if top & 1 else 146, -3, 0  # 1.5/7 and 1/7 as BF16
            if base + e < _LEAST:
                mantissa, e = 128, _LEAST - base
            out_scales[row, group] = (sign << 15) | ((base + e + 127) << 7) | (mantissa - 128)
            error, energy = _encode(data, counts, k, base, mantissa, e, sign, table, new)
            errors[row, group], energies[row, group] = error * _TWO[2 * base + _ZERO], energy * _TWO[2 * base + _ZERO]


@_compiled
def _count(data, k, counts):
    """How often each code occurs, by block and sign. Returns the place of the largest magnitude."""
    top = _NOTHING
    for block in range(4):
        sums_plus, sums_minus = np.uint64(0), np.uint64(0)  # eight counts each, a byte a code
        for i in range(block * 16, block * 16 + 16):
            sums_plus += _COUNT_PLUS[data[i]]
            sums_minus += _COUNT_MINUS[data[i]]
        for code in range(8):
            shift = np.uint64(8 * code)
            counts[block, 0, code] = np.int64((sums_plus >> shift) & np.uint64(255))
            counts[block, 1, code] = np.int64((sums_minus >> shift) & np.uint64(255))
        for code in range(7, 0, -1):
            if counts[block, 0, code] + counts[block, 1, code] > 0:
                top = max(top, 2 * k[block] + _PLACE[code])
                break
    return top


@_compiled
def _has_positive(counts, k, top):
    """1 if one of the largest magnitudes is positive: that one is to become -8, by a negative scale."""
    for block in range(4):
        for code in range(1, 8):
            if 2 * k[block] + _PLACE[code] == top and counts[block, 0, code] > 0:
                return 1
    return 0


@_compiled
def _histogram(counts, k, base, plus, minus):
    """Sum the counts of each magnitude over the blocks, one sum a sign. Returns the energy, in units of 4^base."""
    lowest = _OFFSET - 2 * DEPTH - 1
    for i in range(lowest, _OFFSET + 2):
        plus[i] = 0
        minus[i] = 0
    energy = _UNCOUNTED
    for block in range(4):
        start = 2 * (k[block] - base) + _OFFSET
        unit = _TWO[max(k[block] - 1 - base, -600) + _ZERO]
        squares = np.int64(0)
        for code in range(1, 8):
            up, down = counts[block, 0, code], counts[block, 1, code]
            squares += (up + down) * _HALVES[code] * _HALVES[code]
            at = start + _PLACE[code]
            if at >= lowest:
                plus[at] += up
                minus[at] += down
        energy += squares * (unit * unit)
    return energy


@_compiled
def _encode(data, counts, k, base, mantissa, e, sign, table, new):
    """The new codes, and the group's squared error and energy in units of 4^base. ``table`` is room for 16 codes."""
    step = mantissa * _TWO[e - 7 + _ZERO]
    error = 0.0
    energy = 0.0
    for block in range(4):
        unit = _TWO[max(k[block] - 1 - base, -600) + _ZERO]
        squares = np.int64(0)
        for code in range(1, 8):
            place = 2 * (k[block] - base - e) + _PLACE[code] + 1
            nearest = np.int64(0)
            if place >= 9:
                nearest = np.int64(8)
            elif place >= 0:
                nearest = _CODES[mantissa - 128, place]
            value = _HALVES[code] * unit
            for side in range(2):
                q = min(nearest, 7) if side == sign else nearest
                table[code | side << 3] = q if side == sign else (16 - q) & 15
                n = counts[block, side, code]
                if n > 0:
                    off = value - step * q
                    error += n * (off * off)
                    squares += n * _HALVES[code] * _HALVES[code]
        energy += squares * (unit * unit)
        for i in range(block * 16, block * 16 + 16):
            new[i] = table[data[i] & 15] | (table[data[i] >> 4] << 4)
    return error, energy


@_compiled
def _weigh(data, weights, k, base, plus, minus):
    """Sum the weights of each magnitude, one sum a sign. Returns the weighted energy, in units of 4^base."""
    for i in range(_OFFSET + 2):
        plus[i] = 0
        minus[i] = 0
    for i in range(64):
        start = 2 * (k[i // 16] - base) + _OFFSET
        for half in range(2):
            code = np.int64(data[i] >> 4) if half else np.int64(data[i] & 15)
            at = start + _PLACE[code & 7]
            if code & 7 and at >= 0:
                if code >> 3:
                    minus[at] += weights[2 * i + half]
                else:
                    plus[at] += weights[2 * i + half]
    energy = _UNCOUNTED
    for i in range(_OFFSET + 2):
        energy += (plus[i] + minus[i]) * _ENERGY[i]
    return energy


@_compiled
def _search(plus, minus, base, depth, negative, energy):
    """Mantissa, exponent relative to ``base`` and sign bit of the best scale.

    ``plus`` and ``minus`` count (or weigh) each magnitude of the group, by place relative to ``2^base``; ``energy`` is
    the (weighted) sum of squares in units of 4^base, or more.
    """
    lowest = max(-depth, _LEAST - base)
    highest = -2 if lowest == -depth else 1
    best, best_mantissa, best_e, best_sign = 0.0, np.int64(128), _LEAST - base, np.int64(0)
    full_plus, full_minus = np.int64(0), np.int64(0)  # saturated magnitudes, one sum a sign, in units of 2^(e-2)
    count_plus, count_minus = np.int64(0), np.int64(0)
    top = _OFFSET + 1 if plus[_OFFSET + 1] + minus[_OFFSET + 1] > 0 else _OFFSET
    largest, how_often = _TWO[_ZERO] if top == _OFFSET else 1.5, plus[top] + minus[top]
    for e in range(highest, lowest - 1, -1):
        # From some binade on, clipping the largest magnitude alone costs more than the best scale so far does in all.
        clipped = largest - 8.0 * _TWO[e + 1 + _ZERO]
        if clipped > 0.0 and how_often * (clipped * clipped) * 0.999999 > energy + best * _TWO[_ZERO - 14]:
            break
        highest_mantissa = 255
        if highest == -2 and e == -2:  # the scale is below 2/7 of the largest magnitude
            highest_mantissa = 147 if top == _OFFSET else 220
        smallest = e == _LEAST - base
        window = 2 * e - 1 + _OFFSET
        # With codes up to 7 on both sides; what -8 adds is kept apart, by the sign of the values that have it.
        products = 7 * (full_plus + full_minus)
        squares = 49 * (count_plus + count_minus)
        for b in range(9):
            n = plus[window + b] + minus[window + b]
            products += n * _FIRST_PRODUCT[b]
            squares += n * _FIRST_SQUARE[b]
        more_plus, more_minus = full_plus, full_minus
        eights_plus, eights_minus = count_plus, count_minus
        for interval in range(INTERVALS):
            for change in range(_CHANGED[interval]):
                b, step = _CHANGES[interval, change, 0], _CHANGES[interval, change, 1]
                if step < 15:
                    n = plus[window + b] + minus[window + b]
                    products += n * _LIVE[b]
                    squares += n * step
                else:
                    more_plus += plus[window + b] * _LIVE[b]
                    more_minus += minus[window + b] * _LIVE[b]
                    eights_plus += plus[window + b]
                    eights_minus += minus[window + b]
            if LOW[interval] > highest_mantissa:
                continue
            # Where no value takes the code -8, or both signs alike, the negative scale is no better than the positive.
            both = negative and (more_plus != more_minus or eights_plus != eights_minus)
            for sign in range(2 if both else 1):  # a positive scale gives -8 to negative values
                product = products + (more_plus if sign else more_minus)
                square = squares + 15 * (eights_plus if sign else eights_minus)
                # The parabola's lowest point is m = 32 * product / square. Far from this interval: not here.
                if 32 * product >= (HIGH[interval] + 1) * square:
                    continue
                if 32 * product <= (LOW[interval] - 1) * square:
                    if not (smallest and interval == INTERVALS - 1):
                        continue
                    below = np.int64(128)  # below it there is no scale to go on with
                else:
                    below = np.int64(32.0 * product / square)  # floor: float64 holds the quotient well enough
                for m in range(below, below + 2):
                    if LOW[interval] <= m <= HIGH[interval]:
                        gain = np.float64(m * (m * square - 64 * product)) * _TWO[2 * e + _ZERO]
                        if gain < best or (gain == best and best != 0.0 and (
                            e < best_e or (e == best_e and (m < best_mantissa or (m == best_mantissa and sign < best_sign)))
                        )):  # fmt: skip
                            best, best_mantissa, best_e, best_sign = gain, m, e, sign
        full_plus = 2 * (full_plus + 32 * plus[window + 7] + 48 * plus[window + 8])
        full_minus = 2 * (full_minus + 32 * minus[window + 7] + 48 * minus[window + 8])
        count_plus += plus[window + 7] + plus[window + 8]
        count_minus += minus[window + 7] + minus[window + 8]
    return best_mantissa, best_e, best_sign


@_compiled
def total(values):
    """Sum of an array ``[N, G]`` of float64 in row-major order, one after another."""
    result = 0.0
    for row in range(values.shape[0]):
        for group in range(values.shape[1]):
            result += values[row, group]
    return result
