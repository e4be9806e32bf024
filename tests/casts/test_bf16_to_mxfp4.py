from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from truecast.casts.bf16_to_mxfp4 import BLOCK, quantize, shared_exponents
from truecast.formats import e2m1, e8m0
from truecast.formats.packing import unpack_nibbles

MAGNITUDES = [Fraction(h, 2) for h in (0, 1, 2, 3, 4, 6, 8, 12)]


def slow_block(values: list[float]) -> tuple[list[int], int]:
    """One block by the letter of the specification, in rationals."""
    exact = [Fraction(v) for v in values]
    amax = max(abs(v) for v in exact)
    if amax == 0:
        k = -127
    else:
        floor_log2 = amax.numerator.bit_length() - amax.denominator.bit_length()
        if Fraction(2) ** floor_log2 > amax:
            floor_log2 -= 1
        k = min(max(floor_log2 - 2, -127), 127)
    codes = []
    for given_value, value in zip(values, exact, strict=True):
        scaled = min(abs(value) / Fraction(2) ** k, Fraction(6))
        nearest = min(range(8), key=lambda c: (abs(MAGNITUDES[c] - scaled), c % 2))
        codes.append(nearest | (8 if np.signbit(given_value) else 0))
    return codes, k + 127


def check(matrix: NDArray[np.float32]) -> None:
    packed, scales = quantize(matrix)
    codes = unpack_nibbles(packed)
    for row in range(matrix.shape[0]):
        for block in range(matrix.shape[1] // BLOCK):
            where = slice(block * BLOCK, (block + 1) * BLOCK)
            want_codes, want_scale = slow_block([float(v) for v in matrix[row, where]])
            assert codes[row, where].tolist() == want_codes
            assert scales[row, block] == want_scale


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
near_weights = st.floats(min_value=-0.25, max_value=0.25, width=32)
halves = st.integers(-16, 16).map(lambda n: n / 4)  # every code and every midpoint, up to a power of two


@given(st.lists(st.one_of(finite, near_weights), min_size=BLOCK, max_size=BLOCK))
@settings(max_examples=150, deadline=None)
def test_agrees_with_rationals(values: list[float]) -> None:
    check(np.array([values], dtype=np.float32))


@given(st.lists(halves, min_size=BLOCK, max_size=BLOCK), st.integers(-120, 120))
@settings(max_examples=150, deadline=None)
def test_ties_agree_with_rationals(values: list[float], exponent: int) -> None:
    check(np.ldexp(np.array([values], dtype=np.float32), exponent))


def test_rows_and_blocks_keep_their_places() -> None:
    rng = np.random.default_rng(0)
    matrix = (rng.standard_normal((5, 96)) * 2.0 ** rng.integers(-130, 120, (5, 1))).astype(np.float32)
    check(matrix)


@pytest.mark.parametrize("exponent", [-149, -127, -126, -125, -124, -10, 0, 1, 100, 127])
def test_shared_exponent_at_powers_of_two(exponent: int) -> None:
    power = np.ldexp(np.float32(1), exponent).astype(np.float32)
    below, above = np.nextafter(power, np.float32(0)), np.nextafter(power, np.float32(np.inf))
    got = shared_exponents(np.array([below, power, above], dtype=np.float32)).tolist()
    first = -127 if below == 0 else max(exponent - 3, -127)
    if exponent <= -127:  # below a subnormal power lies no value of the binade beneath, or the clamp holds anyway
        assert got == [-127, -127, -127]
    else:
        assert got == [first, max(exponent - 2, -127), max(exponent - 2, -127)]


def test_rounding_agrees_with_ml_dtypes() -> None:
    values = np.linspace(-6, 6, 32 * 101, dtype=np.float32)
    values[31::32] = 6.0  # every block then has k = 0
    packed, scales = quantize(values[None])
    assert (scales == e8m0.BIAS).all()
    ours = e2m1.decode(unpack_nibbles(packed))[0]
    theirs = values.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert ours.tobytes() == theirs.tobytes()


@given(st.lists(st.integers(0, 15), min_size=BLOCK, max_size=BLOCK), st.integers(-127, 124))
@settings(deadline=None)
def test_what_is_mxfp4_already_survives(codes: list[int], k: int) -> None:
    values = np.ldexp(e2m1.decode(np.array([codes], dtype=np.uint8)), k).astype(np.float32)
    packed, scales = quantize(values)
    again = np.ldexp(e2m1.decode(unpack_nibbles(packed)), int(scales[0, 0]) - e8m0.BIAS).astype(np.float32)
    assert again.tobytes() == values.tobytes()


def test_error_bound() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((64, 256)).astype(np.float32)
    packed, scales = quantize(values)
    step = np.repeat(e8m0.decode(scales), BLOCK, axis=-1)
    error = np.abs(e2m1.decode(unpack_nibbles(packed)) * step - values)
    inside = np.abs(values) <= 6 * step
    assert (error[inside] <= step[inside]).all()
    assert (error < 2 * step).all()


def test_all_zero_block_has_scale_byte_0_and_keeps_signs() -> None:
    packed, scales = quantize(np.array([[0.0, -0.0] * 16], dtype=np.float32))
    assert scales.tolist() == [[0]]
    assert set(packed[0].tolist()) == {0x80}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_what_is_not_finite(bad: float) -> None:
    values = np.ones((3, 64), dtype=np.float32)
    values[2, 40] = bad
    with pytest.raises(ValueError, match="row 2, block 1"):
        quantize(values)


@pytest.mark.parametrize("shape", [(4, 33), (32,), (1, 2, 32)])
def test_refuses_shapes_without_whole_blocks(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        quantize(np.zeros(shape, dtype=np.float32))


def test_no_rows() -> None:
    packed, scales = quantize(np.zeros((0, 64), dtype=np.float32))
    assert packed.shape == (0, 32) and scales.shape == (0, 2)
