"""The loops of :mod:`truecast.casts.gptq`, compiled by numba. Sums have one order, so that every run gives the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from truecast.compiled import compiled

_GROUP = 128
_ONE = 0x3F80
_LEAST = 2.0**-126  # the smallest normal BF16


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return compiled(function, error_model="numpy", boundscheck=False)


@_compiled
def factorise(h):
    """Turn a symmetric ``h [K, K]`` into upper triangular R with R R^T = h, in place. Returns -1, or where it fails."""
    size = h.shape[0]
    columns = np.zeros((size, size))  # row k is column k of R, so that the inner loop runs along memory
    column = np.zeros(size)
    for j in range(size - 1, -1, -1):
        for i in range(j + 1):
            column[i] = h[i, j]
        for k in range(j + 1, size):
            share = columns[k, j]
            if share != 0.0:
                for i in range(j + 1):
                    column[i] -= share * columns[k, i]
        if not column[j] > 0.0:
            return j
        root = np.sqrt(column[j])
        for i in range(j):
            columns[j, i] = column[i] / root
        columns[j, j] = root
    for i in range(size):
        for j in range(size):
            h[i, j] = columns[j, i] if j >= i else 0.0
    return -1


@_compiled
def round_columns(values, r, codes, scales):
    """Round a matrix group by group of columns, and inside a group column by column.

    Shapes: values ``[N, K]`` float64, r ``[K, K]`` upper triangular; results codes ``[N, K]`` int8, scales ``[N, K/128]``
    BF16 bits.
    """
    errors = np.zeros(values.shape)
    carried = np.zeros(_GROUP)
    moved = np.zeros(_GROUP)
    wanted = np.zeros(_GROUP)
    weights = np.zeros(_GROUP)
    for group in range(scales.shape[1]):
        first = group * _GROUP
        above = r[:first, first : first + _GROUP].copy()
        own = r[first : first + _GROUP, first : first + _GROUP].copy()
        largest = 0.0
        for j in range(_GROUP):
            largest = max(largest, own[j, j])
        for j in range(_GROUP):  # equal ones become 1, so that sums are exact where data-free rounding's are
            weights[j] = (own[j, j] / largest) * (own[j, j] / largest)
        for row in range(values.shape[0]):
            zero = True
            for j in range(_GROUP):
                carried[j] = 0.0
                zero = zero and values[row, first + j] == 0.0
            if zero:
                scales[row, group] = _ONE
                codes[row, first : first + _GROUP] = 0
                continue
            for k in range(first):
                error = errors[row, k]
                if error != 0.0:
                    for j in range(_GROUP):
                        carried[j] += error * above[k, j]
            for j in range(_GROUP):
                moved[j] = carried[j]
            for j in range(_GROUP):  # where the group would stand without rounding: moved @ own = carried
                moved[j] /= own[j, j]
                if moved[j] != 0.0:
                    for k in range(j + 1, _GROUP):
                        moved[k] -= moved[j] * own[j, k]
                wanted[j] = values[row, first + j] + moved[j]
            bits = best_scale(wanted, weights)
            scales[row, group] = bits
            step = _value(bits)
            for j in range(_GROUP):
                target = values[row, first + j] + carried[j] / own[j, j]
                q = min(max(np.rint(target / step), -8.0), 7.0)
                codes[row, first + j] = np.int8(q)
                error = values[row, first + j] - step * q
                errors[row, first + j] = error
                if error != 0.0:
                    for k in range(j + 1, _GROUP):
                        carried[k] += error * own[j, k]


@_compiled
def best_scale(wanted, weights):
    """Bits of the BF16 scale of least weighted squared error with nearest codes. Shapes: ``[128]``, ``[128]``."""
    largest = 0.0
    for j in range(_GROUP):
        largest = max(largest, abs(wanted[j]))
    if largest < _LEAST * 4.0:  # no normal scale makes any code of it that another does not
        return 0x0080
    low, high = _bits_below(max(largest / 32.0, _LEAST)), _bits_below(max(largest * 2.0 / 7.0, _LEAST))
    guess = _bits_below(max(largest / 8.0, _LEAST))
    bound = min(_error(wanted, weights, _value(guess), np.inf), _error(wanted, weights, -_value(guess), np.inf))
    best, bits = np.inf, guess
    for candidate in range(low, high + 1):
        for sign in range(2):
            step = _value(candidate) if sign == 0 else -_value(candidate)
            error = _error(wanted, weights, step, min(best, bound))
            if error < best:
                best, bits = error, candidate | sign << 15
    return bits


@_compiled
def _error(wanted, weights, step, limit):
    """The weighted squared error; something above the limit, as soon as that is clear."""
    total = 0.0
    for first in range(0, _GROUP, 16):
        for j in range(first, first + 16):
            q = min(max(np.rint(wanted[j] / step), -8.0), 7.0)
            off = wanted[j] - step * q
            total += weights[j] * (off * off)
        if total > limit:
            return np.inf
    return total


@_compiled
def _bits_below(value):
    """Bits of the largest BF16 number that is not above a positive, normal one."""
    mantissa, exponent = math.frexp(value)
    return ((exponent + 126) << 7) | (int(mantissa * 256.0) - 128)


@_compiled
def _value(bits):
    """A BF16 number from its bits."""
    size = math.ldexp(float(128 + (bits & 127)), ((bits >> 7) & 255) - 134)
    return -size if bits & 0x8000 else size
