from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

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


VALUES = hnp.arrays(np.int8, st.tuples(st.integers(0, 4), st.sampled_from([0, 8, 24])), elements=st.integers(-8, 7))


@given(VALUES)
def test_packed_values_come_back(values: np.ndarray) -> None:
    packed = int4.pack(values)
    assert packed.shape == (values.shape[0], values.shape[1] // 2)
    np.testing.assert_array_equal(int4.unpack(packed), values)


@given(VALUES)
def test_the_other_form_is_words_of_offset_codes(values: np.ndarray) -> None:
    """Element j of a word in bits 4j to 4j + 3, as value + 8: summed up here as whole numbers."""
    words = [[sum((int(v) + 8) << 4 * j for j, v in enumerate(row[i : i + 8])) for i in range(0, len(row), 8)]
             for row in values]  # fmt: skip
    swapped = int4.swap_forms(int4.pack(values))
    assert [row.view("<u4").tolist() for row in swapped] == words
    np.testing.assert_array_equal(int4.swap_forms(swapped), int4.pack(values))


def test_the_low_nibble_is_the_even_element() -> None:
    assert int4.pack(np.array([1, -1])).tolist() == [0xF1]


@pytest.mark.parametrize("values", [np.array([1]), np.array([8, 0])])
def test_what_cannot_be_packed_is_refused(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"odd|-8\.\.7"):
        int4.pack(values)
