from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from truecast.formats import e8m0

EVERY_BYTE = np.arange(256, dtype=np.uint8)


def test_every_byte_decodes_as_ml_dtypes_does() -> None:
    ours = e8m0.decode(EVERY_BYTE)
    theirs = EVERY_BYTE.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(ours, theirs)  # NaN equals NaN here


def test_byte_0_is_the_real_value_two_to_the_minus_127() -> None:
    assert e8m0.decode(np.array([0], np.uint8))[0] == np.ldexp(1.0, -127) > 0


def test_only_byte_255_is_nan() -> None:
    assert np.flatnonzero(np.isnan(e8m0.decode(EVERY_BYTE))).tolist() == [255] == [e8m0.NAN]


def test_exponents_are_the_logarithms_of_the_values() -> None:
    np.testing.assert_array_equal(
        np.ldexp(1.0, e8m0.exponents(EVERY_BYTE[:255])), e8m0.decode(EVERY_BYTE[:255]).astype(np.float64)
    )


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int64])
def test_encode_inverts_exponents(dtype: type[np.integer]) -> None:
    exponents = e8m0.exponents(EVERY_BYTE[:255]).astype(dtype)
    np.testing.assert_array_equal(e8m0.encode(exponents), EVERY_BYTE[:255])


@pytest.mark.parametrize("exponent", [-128, 128, -1000])
def test_encode_refuses_what_does_not_exist(exponent: int) -> None:
    with pytest.raises(ValueError, match=r"-127\.\.127"):
        e8m0.encode(np.array([0, exponent]))
