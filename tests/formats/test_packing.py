from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from truecast.formats import packing

EVERY_BYTE = np.arange(256, dtype=np.uint8)


def test_the_low_nibble_is_the_even_element() -> None:
    np.testing.assert_array_equal(packing.unpack_nibbles(np.array([0xB3], np.uint8)), [0x3, 0xB])
    np.testing.assert_array_equal(packing.pack_nibbles(np.array([0x3, 0xB], np.uint8)), [0xB3])


def test_every_byte_survives() -> None:
    codes = packing.unpack_nibbles(EVERY_BYTE)
    np.testing.assert_array_equal(codes[0::2], EVERY_BYTE & 15)
    np.testing.assert_array_equal(codes[1::2], EVERY_BYTE >> 4)
    np.testing.assert_array_equal(packing.pack_nibbles(codes), EVERY_BYTE)


@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=6), elements=st.integers(0, 255)))
def test_round_trip_of_any_shape_and_stride(packed: np.ndarray) -> None:
    for view in (packed, packed[::-1], packed.T):
        codes = packing.unpack_nibbles(view)
        assert codes.shape == (*view.shape[:-1], 2 * view.shape[-1])
        np.testing.assert_array_equal(packing.pack_nibbles(codes), view)


def test_an_odd_number_of_codes_is_refused() -> None:
    with pytest.raises(ValueError, match="odd number"):
        packing.pack_nibbles(np.zeros((2, 3), np.uint8))


def test_a_code_above_15_is_refused() -> None:
    with pytest.raises(ValueError, match="got 16"):
        packing.pack_nibbles(np.array([0, 16], np.uint8))
