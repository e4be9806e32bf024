"""Slow references in exact rational arithmetic, written from the formats' definitions, sharing nothing with the casts."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

E2M1 = [Fraction(h, 2) for h in (0, 1, 2, 3, 4, 6, 8, 12)]


class Number(NamedTuple):
    """A value with its sign apart, so that minus zero differs from zero."""

    negative: bool
    magnitude: Fraction


def e4m3(byte: int) -> Fraction:
    """Value of a positive finite E4M3 byte."""
    assert 0 <= byte < 0x7F, hex(byte)
    field, fraction = byte >> 3, byte & 7
    return Fraction(fraction, 512) if field == 0 else Fraction(8 + fraction, 8) * Fraction(2) ** (field - 7)


def e8m0(byte: int) -> Fraction:
    """Value of an E8M0 byte."""
    assert byte != 255
    return Fraction(2) ** (byte - 127)


def codes_of(packed: U8) -> list[list[int]]:
    """The codes of each row, low nibble first."""
    return [[n for byte in row for n in (int(byte) & 15, int(byte) >> 4)] for row in packed]


def _number(code: int, scale: Fraction) -> Number:
    return Number(code >= 8, E2M1[code & 7] * scale)


def decode_mxfp4(packed: U8, scales: U8) -> list[list[Number]]:
    """Every element. Shapes: ``[N, K/2]``, ``[N, K/32]``."""
    return [
        [_number(code, e8m0(int(s[i // 32]))) for i, code in enumerate(row)]
        for row, s in zip(codes_of(packed), scales, strict=True)
    ]


def decode_nvfp4(packed: U8, scales: U8, global_scale: Fraction) -> list[list[Number]]:
    """Every element. Shapes: ``[N, K/2]``, ``[N, K/16]``."""
    return [
        [_number(code, e4m3(int(s[i // 16])) * global_scale) for i, code in enumerate(row)]
        for row, s in zip(codes_of(packed), scales, strict=True)
    ]


def least_squared_error(values: list[Number], global_scale: Fraction) -> Fraction:
    """Least squared error of 16 values over all 126 positive finite E4M3 scales, each value taking its nearest code.

    Counted in whole units, which keeps it exact and quick.
    """
    unit = min([global_scale / 1024, *(v.magnitude / 12 for v in values if v.magnitude)])
    unit = Fraction(2) ** (unit.numerator.bit_length() - unit.denominator.bit_length() - 2)
    wanted = Counter(v.magnitude / unit for v in values)
    assert all(w.denominator == 1 for w in wanted)
    whole = {int(w): n for w, n in wanted.items()}
    least = None
    for byte in range(1, 0x7F):
        step = e4m3(byte) * global_scale / unit
        grid = [int(m * step) for m in E2M1]
        error = sum(n * min((w - g) ** 2 for g in grid) for w, n in whole.items())
        least = error if least is None else min(least, error)
    assert least is not None
    return least * unit**2
