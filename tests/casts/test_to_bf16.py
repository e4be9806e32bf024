from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.casts import reference
from truecast.casts import to_bf16
from truecast.formats import packing

MAX_BF16 = Fraction(255, 128) * Fraction(2) ** 127


def bf16_bits(negative: bool, magnitude: Fraction) -> tuple[int, bool]:
    """Correctly rounded bit pattern (nearest, ties to even, overflow to infinity), and whether that was exact."""
    sign = 0x8000 if negative else 0
    if magnitude == 0:
        return sign, True
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent = max(exponent - (magnitude < Fraction(2) ** exponent), -126)
    step = Fraction(2) ** (exponent - 7)
    steps = round(magnitude / step)  # Fraction rounds half to even
    rounded = steps * step
    bits = ((exponent + 126) << 7) + steps  # a carry runs on into the exponent, as it should
    if rounded > MAX_BF16:
        bits = 0x7F80
    return sign | bits, rounded == magnitude and rounded <= MAX_BF16


def test_the_reference_agrees_with_ml_dtypes_on_every_bf16() -> None:
    every = np.arange(0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    for bits in range(0, 0x7F80, 37):
        assert bf16_bits(False, Fraction(float(every[bits]))) == (bits, True)


def test_the_reference_agrees_with_ml_dtypes_on_float32() -> None:
    bits = np.random.default_rng(0).integers(0, 0x7F800000, 3000, dtype=np.uint32)
    bits[:1000] = (bits[:1000] & 0xFFFF0000) | 0x8000  # ties
    values = bits.view(np.float32)
    theirs = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    for value, expected in zip(values, theirs, strict=True):
        assert bf16_bits(False, Fraction(float(value)))[0] == expected


def all_codes(blocks: int, group: int) -> np.ndarray:
    """One row per block, in it all 16 codes. Shape: ``[blocks, group / 2]``."""
    return packing.pack_nibbles(np.tile(np.arange(16, dtype=np.uint8), (blocks, group // 16)))


def test_every_code_under_every_e8m0_byte() -> None:
    scales = np.arange(255, dtype=np.uint8)[:, None]
    bits, inexact = to_bf16.from_mxfp4(all_codes(255, 32), scales)
    assert bits.shape == (255, 32)
    expected_inexact = 0
    for byte in range(255):
        for code in range(16):
            expected, exact = bf16_bits(code >= 8, reference.E2M1[code & 7] * reference.e8m0(byte))
            assert bits[byte, code] == bits[byte, code + 16] == expected, (byte, code)
            expected_inexact += 2 * (not exact)
    assert inexact == expected_inexact > 0


def test_only_overflow_is_inexact_and_it_is_counted() -> None:
    for byte, count in ((252, 0), (253, 8), (254, 16)):
        _, inexact = to_bf16.from_mxfp4(all_codes(1, 32), np.array([[byte]], np.uint8))
        # 253 = 2^126: +-4 and +-6 overflow; 254: also +-2 and +-3. Each stands twice in the block.
        assert inexact == count, byte
    assert to_bf16.OVERFLOW_EXPONENT == 253 - 127


GLOBAL_SCALES = [
    1.0, 2.0**-10, 2.0**-126, 2.0**-149, 2.0**-140, 2.0**119, 2.0**127,
    0.1, 3.0, 1 / 3, 2688.0, 1e-38, 3e38, 1.0000001, 1.9999999, 257 / 256, 1.5 * 2.0**-20,
]  # fmt: skip


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("scale", GLOBAL_SCALES)
def test_every_code_under_every_e4m3_byte(scale: float, divides: bool) -> None:
    single = np.float32(scale)
    exact_scale = Fraction(float(single))
    if divides:
        exact_scale = 1 / exact_scale
    bits, inexact = to_bf16.from_nvfp4(all_codes(127, 16), np.arange(127, dtype=np.uint8)[:, None], single, divides)
    assert bits.shape == (127, 16)
    expected_inexact = 0
    for byte in range(127):
        block = reference.e4m3(byte) * exact_scale
        for code in range(16):
            expected, exact = bf16_bits(code >= 8, reference.E2M1[code & 7] * block)
            assert bits[byte, code] == expected, (byte, code)
            expected_inexact += not exact
    assert inexact == expected_inexact


def test_negative_block_scales_keep_their_sign() -> None:
    bits, inexact = to_bf16.from_nvfp4(all_codes(1, 16), np.array([[0xB8]], np.uint8), np.float32(1), False)
    values = bits.view(ml_dtypes.bfloat16).astype(np.float32)[0]
    np.testing.assert_array_equal(values, -np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]))
    assert inexact == 0


def test_nothing_is_rounded_twice() -> None:
    """Rounded to float32 first, this product becomes a tie and then rounds down; in one step it rounds up."""
    target = Fraction(1) + Fraction(1, 256) + Fraction(1, 1 << 26)  # a hair above the middle of two BF16 values
    found = 0
    for byte in range(0x30, 0x48):
        for magnitude in (Fraction(3, 2), Fraction(3)):
            factor = reference.e4m3(byte) * magnitude
            scale = np.float32(float(target / factor))
            product = Fraction(float(scale)) * factor
            twice = np.float32(float(product)).astype(ml_dtypes.bfloat16).view(np.uint16)
            once, _ = bf16_bits(False, product)
            found += int(twice) != once
            code = reference.E2M1.index(magnitude)
            packed = packing.pack_nibbles(np.full((1, 16), code, np.uint8))
            bits, _ = to_bf16.from_nvfp4(packed, np.array([[byte]], np.uint8), scale, False)
            assert (bits == once).all()
    assert found > 0  # the trap exists
