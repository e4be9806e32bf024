from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from truecast.verify.rounding import bf16_bits, e4m3_bytes

BF16 = np.arange(0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)


def test_every_bf16_number_is_itself_and_every_midpoint_goes_to_the_even_one() -> None:
    for sign in (1, -1):
        bits, exact = bf16_bits(sign * BF16)
        assert (bits == (np.arange(0x7F80) | (0x8000 if sign < 0 else 0))).all()
        assert exact.all() and (bits.view(ml_dtypes.bfloat16).astype(np.float64) == sign * BF16).all()
    middle = (BF16[1:] + BF16[:-1]) / 2
    bits, exact = bf16_bits(middle)
    assert not exact.any() and (bits % 2 == 0).all()
    below, _ = bf16_bits(np.nextafter(middle, 0))
    above, _ = bf16_bits(np.nextafter(middle, np.inf))
    assert (below == np.arange(0x7F7F)).all() and (above == np.arange(1, 0x7F80)).all()


def test_beyond_the_largest_bf16_is_infinity() -> None:
    middle = BF16[-1] + 2.0**119
    bits, exact = bf16_bits(np.array([2.0**128, -(2.0**129), middle, np.nextafter(middle, 0)]))
    assert bits.tolist() == [0x7F80, 0xFF80, 0x7F80, 0x7F7F] and not exact.any()


def test_zeros_keep_their_sign() -> None:
    assert bf16_bits(np.array([0.0, -0.0]))[0].tolist() == [0, 0x8000]
    assert e4m3_bytes(np.array([0.0, -0.0], np.float32)).tolist() == [0, 0x80]


@given(st.floats(-448, 448, width=32))
@example(2.0**-10)
@example(3 * 2.0**-10)
@example(0.0009765626)
def test_e4m3_is_the_nearest_even(value: float) -> None:
    byte = e4m3_bytes(np.array([value], np.float32))
    assert byte.view(ml_dtypes.float8_e4m3fn)[0] == np.float32(value).astype(ml_dtypes.float8_e4m3fn)


def test_e4m3_saturates() -> None:
    assert e4m3_bytes(np.array([449, 465, 1e6, -1e6], np.float32)).tolist() == [0x7E, 0x7E, 0x7E, 0xFE]
