from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truecast.verify.canonical import ValueTable, byte_pairs, equal_values, expand_pairs, mxfp4_table, nvfp4_table

MAGNITUDES = [Fraction(h, 2) for h in (0, 1, 2, 3, 4, 6, 8, 12)]
E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)

GLOBALS = st.one_of(
    st.integers(-126, 127).map(lambda e: np.ldexp(np.float32(1), e)),
    st.floats(min_value=2.0**-126, max_value=2.0**120, width=32).map(np.float32),
)


def mxfp4_value(scale: int, code: int) -> tuple[bool, Fraction]:
    return code >= 8, MAGNITUDES[code & 7] * Fraction(2) ** (scale - 127)


def nvfp4_value(scale: int, code: int, factor: Fraction) -> tuple[bool, Fraction]:
    block = E4M3[scale]
    return (code >= 8) ^ bool(np.signbit(block)), MAGNITUDES[code & 7] * abs(Fraction(float(block))) * factor


def table_value(table: ValueTable, scale: int, code: int) -> tuple[bool, Fraction]:
    numerator = Fraction(int(table.numerator[scale, code]), table.denominator)
    return bool(table.negative[scale, code]), numerator * Fraction(2) ** int(table.exponent[scale, code])


def slow_bf16(negative: bool, value: Fraction) -> tuple[int, bool]:
    """Round to nearest even among the multiples of the step of the value's binade."""
    if value == 0:
        return 0x8000 * negative, True
    binade = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** binade > value:
        binade -= 1
    binade = max(binade, -126)
    steps = value / Fraction(2) ** (binade - 7)
    whole = round(steps)  # Python rounds a fraction to nearest, ties to even
    rounded = whole * Fraction(2) ** (binade - 7)
    if rounded >= Fraction(2) ** 128:
        return 0x7F80 | 0x8000 * negative, False
    bits = int(np.float32(float(rounded)).view(np.uint32)) >> 16
    return bits | 0x8000 * negative, rounded == value


def test_every_mxfp4_value_is_its_fraction() -> None:
    table = mxfp4_table()
    assert table.legal.tolist() == [True] * 255 + [False]
    for scale in range(255):
        for code in range(16):
            assert table_value(table, scale, code) == mxfp4_value(scale, code)


@settings(max_examples=30, deadline=None)
@given(GLOBALS, st.booleans())
def test_every_nvfp4_value_is_its_fraction(global_scale: np.float32, divides: bool) -> None:
    table = nvfp4_table(global_scale, divides)
    factor = Fraction(float(global_scale))
    factor = 1 / factor if divides else factor
    values = table.to_float64()
    bits, exact = table.to_bf16()
    for scale in range(256):
        if np.isnan(E4M3[scale]):
            assert not table.legal[scale]
            continue
        for code in range(16):
            negative, value = nvfp4_value(scale, code, factor)
            assert table_value(table, scale, code) == (negative, value)
            assert int(table.numerator[scale, code]) % 2 == 1 or value == 0
            assert abs(float(values[scale, code])) == float(value)
            assert bool(np.signbit(values[scale, code])) == negative
            assert (int(bits[scale, code]), bool(exact[scale, code])) == slow_bf16(negative, value)


def test_mxfp4_in_bf16() -> None:
    bits, exact = mxfp4_table().to_bf16()
    for scale in range(255):
        for code in range(16):
            assert (int(bits[scale, code]), bool(exact[scale, code])) == slow_bf16(*mxfp4_value(scale, code))


@settings(max_examples=100, deadline=None)
@given(GLOBALS, st.booleans(), st.integers(0, 2**32 - 1))
def test_equal_values_agrees_with_fractions(global_scale: np.float32, divides: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = mxfp4_table(), nvfp4_table(global_scale, divides)
    factor = Fraction(float(global_scale))
    factor = 1 / factor if divides else factor
    b_scale = rng.choice(np.array([1, 2, 0x08, 0x10, 0x38, 0x40, 0x3C, 0x78, 0x80, 0xB8], dtype=np.uint8), 8)
    near = np.log2(float(factor)) + np.log2(np.maximum(np.abs(E4M3[b_scale]), 2.0**-9))
    a_scale = (np.round(near) + 127 + rng.integers(-2, 3, 8)).clip(0, 254).astype(np.uint8)
    a_codes, b_codes = rng.integers(0, 16, (2, 8, 16), dtype=np.uint8)
    same = equal_values(a, a_scale, a_codes, b, b_scale, b_codes)
    for n in range(8):
        for i in range(16):
            x = mxfp4_value(int(a_scale[n]), int(a_codes[n, i]))
            y = nvfp4_value(int(b_scale[n]), int(b_codes[n, i]), factor)
            assert bool(same[n, i]) == (x == y)


def test_zeros_differ_by_sign_only() -> None:
    table = mxfp4_table()
    scales, codes = np.array([3, 3], dtype=np.uint8), np.array([[0] * 16, [8] * 16], dtype=np.uint8)
    assert equal_values(table, scales, codes, table, scales[::-1] + 9, codes).all()
    assert not equal_values(table, scales, codes, table, scales, codes[::-1].copy()).any()


@pytest.mark.parametrize("groups", [1, 3])
def test_expand_pairs_puts_the_even_element_first(groups: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (5, groups * 16), dtype=np.uint8)
    scale = rng.integers(0, 255, (5, groups), dtype=np.uint8)
    per_code = rng.integers(0, 65536, (256, 16), dtype=np.uint16)
    wide = expand_pairs(codes, scale, byte_pairs(per_code)).view(np.uint16)
    for row in range(5):
        for column in range(groups * 32):
            byte = int(codes[row, column // 2])
            code = byte >> 4 if column % 2 else byte & 15
            assert wide[row, column] == per_code[scale[row, column // 32], code]
