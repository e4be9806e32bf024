from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from truecast.formats import e4m3

EVERY_BYTE = np.arange(256, dtype=np.uint8)
FINITE = EVERY_BYTE[~np.isin(EVERY_BYTE, [0x7F, 0xFF])]


def test_every_byte_decodes_as_ml_dtypes_does() -> None:
    theirs = EVERY_BYTE.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    ours = e4m3.decode(EVERY_BYTE)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    np.testing.assert_array_equal(ours[FINITE].view(np.uint32), theirs[FINITE].view(np.uint32))


def test_only_7f_and_ff_are_nan() -> None:
    assert np.flatnonzero(e4m3.IS_NAN).tolist() == [0x7F, 0xFF]
    assert np.flatnonzero(np.isnan(e4m3.decode(EVERY_BYTE))).tolist() == [0x7F, 0xFF]


def test_mantissa_and_exponent_give_the_value() -> None:
    for byte in FINITE:
        sign = -1 if byte & 0x80 else 1
        value = sign * int(e4m3.MANTISSA[byte]) * Fraction(2) ** int(e4m3.EXPONENT[byte])
        assert value == Fraction(float(e4m3.VALUES[byte])), hex(byte)


def test_subnormals_are_steps_of_two_to_the_minus_9() -> None:
    np.testing.assert_array_equal(e4m3.VALUES[:9], np.arange(9) / 512)


def test_encode_inverts_decode() -> None:
    np.testing.assert_array_equal(e4m3.encode_nearest_even(e4m3.decode(FINITE)), FINITE)


@pytest.mark.parametrize("byte", range(0x7E))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_encode_at_and_around_every_midpoint(byte: int, sign: float) -> None:
    middle = (float(e4m3.VALUES[byte]) + float(e4m3.VALUES[byte + 1])) / 2
    values = sign * np.array([np.nextafter(middle, 0), middle, np.nextafter(middle, 999)])
    even = byte + byte % 2
    expected = np.array([byte, even, byte + 1]) | (0x80 if sign < 0 else 0)
    np.testing.assert_array_equal(e4m3.encode_nearest_even(values), expected)


def test_encode_agrees_with_ml_dtypes_on_every_float16_up_to_448() -> None:
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    values = values[np.abs(values) <= 448]
    np.testing.assert_array_equal(
        e4m3.encode_nearest_even(values), values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    )


def test_encode_saturates_instead_of_making_a_nan() -> None:
    values = np.array([448.0, 449, 464, 465, 1e9, np.inf, -465, -np.inf])
    np.testing.assert_array_equal(e4m3.encode_nearest_even(values), [0x7E] * 6 + [0xFE] * 2)


def test_encode_keeps_nan_and_its_sign() -> None:
    np.testing.assert_array_equal(e4m3.encode_nearest_even(np.array([np.nan, -np.nan])), [0x7F, 0xFF])


def test_powers_of_two_are_exact_from_minus_9_to_8_and_nowhere_else() -> None:
    positive = {Fraction(float(v)) for v in e4m3.VALUES[1:0x7F]}
    exact = [d for d in range(-30, 31) if Fraction(2) ** d in positive]
    assert exact == list(range(-9, 9)) == list(range(e4m3.MIN_POW2, e4m3.MAX_POW2 + 1))
    for d in exact:
        assert e4m3.VALUES[e4m3.pow2_byte(d)] == 2.0**d


@pytest.mark.parametrize("d", [-10, 9])
def test_pow2_byte_refuses_what_does_not_exist(d: int) -> None:
    with pytest.raises(ValueError, match=r"-9\.\.8"):
        e4m3.pow2_byte(d)


def test_named_constants() -> None:
    assert e4m3.VALUES[0x7E] == e4m3.MAX == 448
    normal = next(d for d in range(-9, 9) if e4m3.MANTISSA[e4m3.pow2_byte(d)] == 8)
    assert normal == e4m3.MIN_NORMAL_POW2 == -6
