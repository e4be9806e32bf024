"""What a 4-bit code means under its scale, as integers: the common ground on which two layouts are compared.

A value is ``(-1)^negative * numerator / denominator * 2^exponent`` with an odd numerator (or zero) and an odd
denominator, which makes the exponent unique: two values are equal exactly if sign, exponent and the cross products of
numerators and denominators are. The denominator is 1 but for a global scale that divides and is no power of two.
Zeros keep their sign, so minus zero differs from plus zero.

E2M1 magnitudes in halves are at most 12, E4M3 mantissas at most 15, float32 mantissas below 2^24: every product fits
int64 with room for the cross product.

Since one scale byte and one code fix a value (under a matrix's global scale), a table of 256 x 16 values says it all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e2m1, e4m3, e8m0

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]

_CODES = np.arange(16)
_BYTES = np.arange(256)

BF16_INFINITY = 0x7F80


@dataclass(frozen=True, eq=False, slots=True)
class ValueTable:
    """The values of all 16 codes under all 256 scale bytes. Arrays have the shape ``[256, 16]``."""

    negative: NDArray[np.bool_]
    numerator: I64
    exponent: I64
    denominator: int
    legal: NDArray[np.bool_]
    """``[256]``: False for scale bytes that are NaN; their rows mean nothing."""

    def to_float64(self) -> NDArray[np.float64]:
        """The float64 nearest to each value; exact where the denominator is 1. Shape: ``[256, 16]``."""
        magnitude = np.ldexp(self.numerator / self.denominator, self.exponent.astype(np.int32))
        return np.where(self.negative, -magnitude, magnitude)

    def to_bf16(self) -> tuple[U16, NDArray[np.bool_]]:
        """BF16 bit patterns, rounded to nearest even, and whether each is exact. Shapes: ``[256, 16]``.

        What lies beyond the largest finite value becomes infinity, and is not exact.
        """
        return _round_to_bf16(self)


def mxfp4_table() -> ValueTable:
    """``code * 2^(byte - 127)``."""
    return _table("mxfp4", 0, False)


def nvfp4_table(global_scale: np.float32, divides: bool) -> ValueTable:
    """``code * e4m3(byte) * global_scale``, or ``/ global_scale``, which must be positive and finite."""
    return _table("nvfp4", int(np.float32(global_scale).view(np.uint32)), divides)


@lru_cache(maxsize=64)
def _table(kind: str, global_bits: int, divides: bool) -> ValueTable:
    code_negative = (_CODES & e2m1.SIGN_BIT) != 0
    halves = e2m1.HALVES[_CODES & 7].astype(np.int64)
    if kind == "mxfp4":
        mantissa = np.ones(256, dtype=np.int64)
        exponent = _BYTES.astype(np.int64) - e8m0.BIAS
        scale_negative = np.zeros(256, dtype=bool)
        legal = _BYTES != e8m0.NAN
        multiplier, denominator, shift = 1, 1, 0
    else:
        mantissa = e4m3.MANTISSA.astype(np.int64)
        exponent = e4m3.EXPONENT.astype(np.int64)
        scale_negative = _BYTES >= 0x80
        legal = ~e4m3.IS_NAN
        odd, power = odd_parts(np.uint32(global_bits).view(np.float32))
        multiplier, denominator, shift = (1, odd, -power) if divides else (odd, 1, power)
    product = mantissa[:, None] * halves * multiplier
    numerator, zeros = _strip(product)
    total = np.where(product == 0, 0, exponent[:, None] - 1 + shift + zeros)
    negative = scale_negative[:, None] ^ code_negative
    return ValueTable(negative, numerator, total, denominator, legal)


def odd_parts(value: np.float32) -> tuple[int, int]:
    """Odd integer and exponent of two whose product is this positive, finite float32."""
    mantissa, exponent = np.frexp(np.float64(value))
    whole, power = int(mantissa * 2**24), int(exponent) - 24
    while whole % 2 == 0:
        whole, power = whole // 2, power + 1
    return whole, power


def _strip(values: I64) -> tuple[I64, I64]:
    """Odd part and number of trailing zero bits of each; zero stays ``(0, 0)``."""
    lowest = np.where(values == 0, 1, values & -values)
    zeros = (np.frexp(lowest.astype(np.float64))[1] - 1).astype(np.int64)
    return values >> zeros, zeros


def equal_values(a: ValueTable, a_scale: U8, a_codes: U8, b: ValueTable, b_scale: U8, b_codes: U8) -> NDArray[np.bool_]:
    """Are these elements equal as integers, minus zero distinct from plus zero?

    Shapes: scales ``[n]``, codes ``[n, 16]`` -> ``[n, 16]``. NaN scales are the caller's to refuse.
    """
    i, j = (a_scale[:, None], a_codes), (b_scale[:, None], b_codes)
    return np.asarray(
        (a.negative[i] == b.negative[j])
        & (a.exponent[i] == b.exponent[j])
        & (a.numerator[i] * b.denominator == b.numerator[j] * a.denominator)
    )


def _bit_length(values: I64) -> I64:
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)  # exact below 2^53


def _round_to_bf16(table: ValueTable) -> tuple[U16, NDArray[np.bool_]]:
    mantissa, exponent = table.numerator, table.exponent
    if table.denominator != 1:  # long division to 27 bits or more, the remainder kept as a sticky bit
        up = np.where(mantissa == 0, 0, 52 - _bit_length(mantissa))
        quotient, remainder = np.divmod(mantissa << up, table.denominator)
        mantissa, exponent = (quotient << 1) | (remainder != 0), exponent - up - 1
    leading = np.maximum(exponent + _bit_length(mantissa) - 1, -126)  # binade; below -126 steps stay 2^-133
    shift = (leading - 7 - exponent).clip(-62, 62)
    right, left = shift.clip(0), (-shift).clip(0)
    kept = np.where(shift > 0, mantissa >> right, mantissa << left)
    rest = mantissa - (kept << right) * (shift > 0) - mantissa * (shift <= 0)
    half = np.where(shift > 0, np.int64(1) << (right - 1).clip(0), 1)
    rounded = kept + ((rest > half) | ((rest == half) & (kept % 2 == 1)))
    bits = ((leading + 126) << 7) + rounded
    overflow = bits >= BF16_INFINITY
    bits = np.where(mantissa == 0, 0, np.where(overflow, BF16_INFINITY, bits))
    exact = (rest == 0) & ~overflow | (mantissa == 0)
    return (bits | (table.negative.astype(np.int64) << 15)).astype(np.uint16), exact


def byte_pairs(per_code: U16) -> U32:
    """For each (scale byte, packed byte): the entries of its two codes, the even element's in the low half.

    Shapes: ``[256, 16]`` -> ``[65536]``, index ``scale << 8 | packed``.
    """
    wide = per_code.astype(np.uint32)
    return np.asarray(wide[:, _BYTES & 15] | (wide[:, _BYTES >> 4] << 16), dtype=np.uint32).ravel()


def expand_pairs(codes: U8, scale: U8, pairs: U32) -> U32:
    """Look up each packed byte under its scale. Shapes: codes ``[n, k/2]``, scale ``[n, g]`` -> ``[n, k/2]`` uint32.

    Viewed as uint16 the result is ``[n, k]``, one entry an element.
    """
    index = (scale.astype(np.uint16) << 8)[:, :, None] | codes.reshape(*scale.shape, -1)
    return np.asarray(pairs.take(index, mode="wrap").reshape(codes.shape), dtype=np.uint32)
