from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from truecast.formats import int4

CODES = np.arange(16, dtype=np.uint8)


def test_twos_complement_decodes_as_ml_dtypes_does() -> None:
    np.testing.assert_array_equal(int4.decode_twos_complement(CODES), CODES.view(ml_dtypes.int4).astype(np.int8))


def test_twos_complement_encodes_as_ml_dtypes_does() -> None:
    values = np.arange(-8, 8)
    np.testing.assert_array_equal(
        int4.encode_twos_complement(values), values.astype(ml_dtypes.int4).view(np.uint8) & 0x0F
    )


def test_offset_is_value_plus_eight() -> None:
    np.testing.assert_array_equal(int4.decode_offset(CODES), np.arange(-8, 8))
    np.testing.assert_array_equal(int4.encode_offset(np.arange(-8, 8)), CODES)


def test_nibble_8_means_minus_eight_in_one_and_zero_in_the_other() -> None:
    eight = np.array([8], np.uint8)
    assert int4.decode_twos_complement(eight)[0] == -8
    assert int4.decode_offset(eight)[0] == 0


def test_the_two_encodings_differ_in_bit_3_only() -> None:
    values = np.arange(-8, 8)
    np.testing.assert_array_equal(int4.encode_twos_complement(values) ^ int4.encode_offset(values), [8] * 16)


@pytest.mark.parametrize("encode", [int4.encode_twos_complement, int4.encode_offset])
@pytest.mark.parametrize("values", [np.array([-9]), np.array([0, 8]), np.array([200], np.uint8)])
def test_out_of_range_is_refused(encode: type, values: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"-8\.\.7"):
        encode(values)
