from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from truecast.formats import e2m1

CODES = np.arange(16, dtype=np.uint8)
EVERY_CODE = CODES.view(ml_dtypes.float4_e2m1fn)


def test_every_code_decodes_as_ml_dtypes_does() -> None:
    ours, theirs = e2m1.decode(CODES), EVERY_CODE.astype(np.float32)
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))  # bits: minus zero is not zero


def test_halves_are_the_magnitudes_in_units_of_one_half() -> None:
    np.testing.assert_array_equal(e2m1.HALVES / 2, EVERY_CODE[:8].astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_encode_inverts_decode(dtype: type[np.floating]) -> None:
    np.testing.assert_array_equal(e2m1.encode_nearest_even(e2m1.decode(CODES).astype(dtype)), CODES)


MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize("low", range(7))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_encode_at_and_around_every_midpoint(low: int, sign: float) -> None:
    middle = (MAGNITUDES[low] + MAGNITUDES[low + 1]) / 2
    even = low if low % 2 == 0 else low + 1
    values = sign * np.array([np.nextafter(middle, 0), middle, np.nextafter(middle, 9)])
    expected = np.array([low, even, low + 1]) | (8 if sign < 0 else 0)
    np.testing.assert_array_equal(e2m1.encode_nearest_even(values), expected)


def test_encode_agrees_with_ml_dtypes_on_a_fine_grid() -> None:
    values = np.arange(-6 * 64, 6 * 64 + 1, dtype=np.float32) / 64
    np.testing.assert_array_equal(
        e2m1.encode_nearest_even(values), values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    )


def test_encode_keeps_the_sign_of_zero_and_of_what_rounds_to_zero() -> None:
    values = np.array([0.0, -0.0, 1e-30, -1e-30, 0.25, -0.25])
    np.testing.assert_array_equal(e2m1.encode_nearest_even(values), [0, 8, 0, 8, 0, 8])


def test_encode_saturates() -> None:
    np.testing.assert_array_equal(
        e2m1.encode_nearest_even(np.array([7.0, 1e30, np.inf, -7.0, -np.inf])), [7, 7, 7, 15, 15]
    )


def test_encode_refuses_nan() -> None:
    with pytest.raises(ValueError, match="NaN"):
        e2m1.encode_nearest_even(np.array([1.0, np.nan]))
