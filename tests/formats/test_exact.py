"""The laws of exactness, held against enumeration with rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truecast.formats import e2m1, e4m3, exact, packing

MAGNITUDES = [Fraction(h, 2) for h in (0, 1, 2, 3, 4, 6, 8, 12)]
SCALES = [Fraction(float(v)) for v in e4m3.VALUES[1:0x7F]]
"""All 126 positive finite E4M3 values."""


def members(mask: int) -> list[int]:
    return [i + 1 for i in range(7) if mask >> i & 1]


_SCALES_OF: dict[tuple[int, int], frozenset[int]] = {
    (code, d): frozenset(
        i for i, scale in enumerate(SCALES) if MAGNITUDES[code] * Fraction(2) ** d / scale in MAGNITUDES
    )
    for code in range(1, 8)
    for d in range(-14, 15)
}


def _some_scale(mask: int, d: int) -> bool:
    scales = frozenset(range(len(SCALES)))
    for code in members(mask):
        scales &= _SCALES_OF[code, d]
    return bool(scales)


def test_all_126_scales_are_tried() -> None:
    assert len(SCALES) == len(set(SCALES)) == 126


@pytest.mark.parametrize("d", range(-14, 15))
def test_a_half_block_is_exact_just_where_its_reach_says(d: int) -> None:
    """No E4M3 scale, power of two or not, represents a half block outside -9 - down .. 8 + up."""
    for mask in range(1, 128):
        law = -9 - int(exact.REACH_DOWN[mask]) <= d <= 8 + int(exact.REACH_UP[mask])
        assert _some_scale(mask, d) == law, (members(mask), d)


def test_no_half_block_reaches_beyond_minus_12_or_plus_11() -> None:
    assert exact.REACH_DOWN.max() == exact.REACH_UP.max() == exact.MAX_SHIFT == 3
    assert [m for m in range(128) if exact.REACH_DOWN[m] == 3] == [1 << 5]  # {4}
    assert [m for m in range(128) if exact.REACH_UP[m] == 3] == [1 << 0]  # {0.5}
    assert sum(exact.REACH_DOWN[1:] >= 1) == sum(exact.REACH_UP[1:] >= 1) == 31
    assert sum(exact.REACH_DOWN[1:] >= 2) == sum(exact.REACH_UP[1:] >= 2) == 7


def test_shift_code_table_against_rationals() -> None:
    for shift in range(-3, 4):
        for code in range(16):
            value = MAGNITUDES[code & 7] * Fraction(2) ** shift
            expected = MAGNITUDES.index(value) | (code & 8) if value in MAGNITUDES else 0xFF
            assert exact.SHIFT_CODE[shift + 3, code] == expected, (shift, code)


def test_mask_of_every_byte() -> None:
    packed = np.zeros((256, 8), np.uint8)
    packed[:, 3] = np.arange(256)
    for byte, (mask,) in enumerate(exact.magnitude_masks(packed)):
        assert set(members(int(mask))) == {byte & 7, byte >> 4 & 7} - {0}


@given(st.lists(st.integers(0, 15), min_size=32, max_size=32))
@settings(max_examples=50)
def test_masks_are_per_half_block(codes: list[int]) -> None:
    masks = exact.magnitude_masks(packing.pack_nibbles(np.array(codes, np.uint8)))
    for half in (0, 1):
        assert set(members(int(masks[half]))) == {c & 7 for c in codes[16 * half : 16 * half + 16]} - {0}


def test_reach_histogram_counts_live_half_blocks_once() -> None:
    masks = np.array([[0, 1 << 5], [1, 0b1111111]], np.uint8)
    histogram = exact.reach_histogram(np.array([[-127, 5], [127, 5]], np.int16), masks)
    expected = np.zeros((255, 4, 4), np.int64)
    expected[5 + 127, 3, 0] = 1  # {4}: halves three times; doubling gives 8
    expected[127 + 127, 0, 3] = 1  # {0.5}
    expected[5 + 127, 0, 0] = 1
    np.testing.assert_array_equal(histogram, expected)


def test_the_table_of_halves_is_the_formats_own() -> None:
    assert [Fraction(int(h), 2) for h in e2m1.HALVES] == MAGNITUDES


# ---- the choice of m -------------------------------------------------------------------------------------------------

Entry = tuple[int, int, int, int]  # k, down, up, count


def histogram_of(entries: list[Entry]) -> np.ndarray:
    histogram = np.zeros((255, 4, 4), np.int64)
    for k, down, up, count in entries:
        histogram[k + 127, down, up] += count
    return histogram


def inexact(entries: list[Entry], m: int) -> int:
    return sum(n for k, down, up, n in entries if not -9 - down <= k - m <= 8 + up)


def above(entries: list[Entry], m: int) -> int:
    return sum(n for k, _, up, n in entries if k - m > 8 + up)


def brute_force(entries: list[Entry]) -> tuple[int, int]:
    every_m = range(-126, 140)
    preferred = max(max(k for k, *_ in entries) - 8, -126)
    exact_ones = [m for m in every_m if inexact(entries, m) == 0]
    if exact_ones:
        return min(exact_ones, key=lambda m: (abs(m - preferred), m)), 0
    smallest = next(m for m in every_m if above(entries, m) == 0)
    return smallest, inexact(entries, smallest)


@st.composite
def histograms(draw: st.DrawFn) -> list[Entry]:
    """Mostly near the edge of what can be exact: exponents 12 to 30 apart, anywhere from -127 to 127."""
    span = draw(st.integers(0, 30))
    base = draw(st.one_of(st.integers(-127, 127 - span), st.just(-127), st.just(127 - span)))
    entry = st.tuples(st.integers(base, base + span), st.integers(0, 3), st.integers(0, 3), st.integers(1, 1 << 40))
    return draw(st.lists(entry, min_size=1, max_size=6))


@given(histograms())
@settings(max_examples=400)
def test_choice_of_m_against_every_m(entries: list[Entry]) -> None:
    chosen = exact.choose_global_exponent(histogram_of(entries))
    assert (chosen.m, chosen.inexact_half_blocks) == brute_force(entries)


@pytest.mark.parametrize("k_max", range(-127, 128))
def test_a_span_of_17_is_exact_at_the_preferred_exponent(k_max: int) -> None:
    entries = [(k_max, 0, 0, 1), (max(k_max - 17, -127), 0, 0, 1)]
    chosen = exact.choose_global_exponent(histogram_of(entries))
    assert chosen == exact.GlobalExponent(max(k_max - 8, -126), 0)


def test_m_is_raised_to_minus_126_and_stays_exact() -> None:
    assert exact.choose_global_exponent(histogram_of([(-127, 0, 0, 3)])) == exact.GlobalExponent(-126, 0)
    assert exact.preferred_exponent(-127) == -126
    assert exact.preferred_exponent(-117) == -125


def test_no_live_half_block_gives_m_zero() -> None:
    assert exact.choose_global_exponent(np.zeros((255, 4, 4), np.int64)) == exact.GlobalExponent(0, 0)


def test_span_18_is_saved_by_a_small_half_block_that_can_be_halved() -> None:
    assert exact.choose_global_exponent(histogram_of([(0, 0, 0, 1), (-18, 1, 0, 1)])) == exact.GlobalExponent(-8, 0)


def test_span_18_is_saved_by_a_large_half_block_that_can_be_doubled() -> None:
    assert exact.choose_global_exponent(histogram_of([(0, 0, 1, 1), (-18, 0, 0, 1)])) == exact.GlobalExponent(-9, 0)


def test_what_is_lost_is_at_the_small_end_even_if_more_blocks_are_there() -> None:
    entries = [(0, 0, 0, 1), (-18, 0, 0, 1000)]
    assert exact.choose_global_exponent(histogram_of(entries)) == exact.GlobalExponent(-8, 1000)
