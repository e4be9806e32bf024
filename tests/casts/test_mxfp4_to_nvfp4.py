from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.casts import reference
from truecast.casts import mxfp4_to_nvfp4
from truecast.casts.mxfp4_to_nvfp4 import NVFP4Report
from truecast.formats import exact, packing

U8 = NDArray[np.uint8]


class Cast:
    """One matrix cast, and its decoded forms on both sides."""

    def __init__(self, codes: list[list[int]], scales: list[list[int]], m: int | None = None) -> None:
        self.packed = packing.pack_nibbles(np.array(codes, np.uint8))
        self.source_scales = np.array(scales, np.uint8)
        histogram = mxfp4_to_nvfp4.reach_histogram(self.packed, self.source_scales)
        self.chosen = exact.choose_global_exponent(histogram)
        self.m = self.chosen.m if m is None else m
        self.reads = 0
        before = self.packed.copy(), self.source_scales.copy()
        self.scales, changes, self.report = mxfp4_to_nvfp4.cast(self.source_scales, self.m, self._read)
        np.testing.assert_array_equal(self.packed, before[0])  # the inputs stay
        np.testing.assert_array_equal(self.source_scales, before[1])
        self.codes_stay = changes is None
        self.new_packed = self.packed if changes is None else changes.apply(self.packed)

    def _read(self, rows: NDArray[np.int64], groups: NDArray[np.int64]) -> U8:
        self.reads += 1
        return self.packed.reshape(len(self.packed), -1, 16)[rows, groups]

    @property
    def before(self) -> list[list[reference.Number]]:
        return reference.decode_mxfp4(self.packed, self.source_scales)

    @property
    def after(self) -> list[list[reference.Number]]:
        return reference.decode_nvfp4(self.new_packed, self.scales, Fraction(2) ** self.m)

    def half_blocks(self) -> list[tuple[int, int, list[reference.Number], list[reference.Number]]]:
        """(row, half block, values before, values after) of every half block."""
        before, after = self.before, self.after
        return [
            (r, h, before[r][16 * h : 16 * h + 16], after[r][16 * h : 16 * h + 16])
            for r in range(len(before))
            for h in range(len(before[0]) // 16)
        ]

    @property
    def changed(self) -> set[tuple[int, int]]:
        """(row, first column) of the live half blocks whose values differ."""
        return {
            (r, 16 * h)
            for r, h, before, after in self.half_blocks()
            if any(v.magnitude for v in before) and before != after
        }


def check_everything(cast: Cast) -> None:
    """All that the cast promises, for any matrix under the m that was chosen for it."""
    assert cast.scales.dtype == np.uint8
    assert cast.scales.shape == (cast.packed.shape[0], cast.packed.shape[1] // 8)
    assert ((cast.scales > 0) & (cast.scales < 0x7F)).all()  # finite, positive, on every half block
    report, m = cast.report, cast.m
    assert report.half_blocks == cast.scales.size
    assert report.subnormal_scales == sum(reference.e4m3(int(s)) < Fraction(1, 64) for s in cast.scales.flat)
    below = [(r, h) for r, h, before, _ in cast.half_blocks() if any(v.magnitude for v in before)]
    assert report.subnormal_live == sum(reference.e4m3(int(cast.scales[r, h])) < Fraction(1, 64) for r, h in below)
    assert {(b.row, b.column) for b in report.inexact} == cast.changed
    assert len(report.inexact) == len(cast.changed)
    old_codes, new_codes = reference.codes_of(cast.packed), reference.codes_of(cast.new_packed)
    renormalised = 0
    for row, half, before, after in cast.half_blocks():
        columns = slice(16 * half, 16 * half + 16)
        old, new = old_codes[row][columns], new_codes[row][columns]
        d = int(cast.source_scales[row, half // 2]) - 127 - m
        scale = reference.e4m3(int(cast.scales[row, half]))
        if not any(v.magnitude for v in before):
            assert old == new
            assert scale == Fraction(2) ** min(max(d, -9), 8)
        elif -9 <= d <= 8:
            assert old == new
            assert before == after
        elif (row, 16 * half) not in cast.changed:
            assert before == after
            assert old != new
            renormalised += 1
        assert [c & 8 for c in old] == [c & 8 for c in new]  # no sign is ever lost, not even that of zero
    assert report.renormalised == renormalised
    assert cast.codes_stay == (not renormalised and not report.inexact)


def check_inexact_blocks(cast: Cast) -> None:
    """No scale and no codes come nearer than those chosen, and the report says how near that is."""
    by_place = {(b.row, b.column): b for b in cast.report.inexact}
    for row, half, before, after in cast.half_blocks():
        block = by_place.get((row, 16 * half))
        if block is None:
            continue
        error = sum((abs(x.magnitude - y.magnitude)) ** 2 for x, y in zip(before, after, strict=True))
        assert error == reference.least_squared_error(before, Fraction(2) ** cast.m)
        assert block.source_exponent == int(cast.source_scales[row, half // 2]) - 127
        assert block.squared_error == float(error)
        assert block.squared_sum == float(sum(v.magnitude**2 for v in before))


half_codes = st.one_of(
    st.lists(st.integers(0, 15), min_size=16, max_size=16),
    st.lists(st.sampled_from([0, 8]), min_size=16, max_size=16),  # all zero
    st.lists(st.sampled_from([0, 8, 6, 14]), min_size=16, max_size=16),  # {4}: reaches far down
    st.lists(st.sampled_from([0, 8, 4, 6, 7, 15]), min_size=16, max_size=16),  # {2,4,6}
    st.lists(st.sampled_from([0, 8, 1, 9]), min_size=16, max_size=16),  # {0.5}: reaches far up
    st.lists(st.sampled_from([0, 8, 1, 2, 3, 11]), min_size=16, max_size=16),  # {0.5,1,1.5}
)


@st.composite
def matrices(draw: st.DrawFn, spans: st.SearchStrategy[int]) -> tuple[list[list[int]], list[list[int]]]:
    rows, blocks, span = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(spans)
    base = draw(st.one_of(st.integers(0, 254 - span), st.just(0), st.just(254 - span)))
    scale = st.one_of(st.integers(base, base + span), st.sampled_from([base, base + span]))
    codes = [[c for _ in range(2 * blocks) for c in draw(half_codes)] for _ in range(rows)]
    return codes, [[draw(scale) for _ in range(blocks)] for _ in range(rows)]


@given(matrices(st.integers(0, 17)))
@settings(max_examples=60, deadline=None)
def test_within_the_window_every_value_and_every_code_stays(matrix: tuple[list[list[int]], list[list[int]]]) -> None:
    cast = Cast(*matrix)
    check_everything(cast)
    assert not cast.report.inexact
    assert cast.chosen.inexact_half_blocks == 0


@given(matrices(st.integers(18, 24)))
@settings(max_examples=80, deadline=None)
def test_beyond_the_window_values_stay_or_are_listed(matrix: tuple[list[list[int]], list[list[int]]]) -> None:
    cast = Cast(*matrix)
    check_everything(cast)
    check_inexact_blocks(cast)
    assert len(cast.report.inexact) == cast.chosen.inexact_half_blocks


@given(matrices(st.integers(0, 40)), st.integers(-3, 3))
@settings(max_examples=40, deadline=None)
def test_any_m_near_the_chosen_one_keeps_the_promises(
    matrix: tuple[list[list[int]], list[list[int]]], off: int
) -> None:
    """Twins share an m that suits the other one better."""
    cast = Cast(*matrix, m=Cast(*matrix).m + off)
    check_everything(cast)


@given(st.lists(st.integers(0, 15), min_size=16, max_size=16).filter(lambda c: any(x & 7 for x in c)))
@settings(max_examples=40, deadline=None)
def test_least_squares_below_the_window_is_the_least(codes: list[int]) -> None:
    for d in (-10, -11, -13, -20):
        cast = Cast([codes + [0] * 16], [[127 + d]], m=0)
        check_everything(cast)
        check_inexact_blocks(cast)


@given(st.lists(st.integers(0, 15), min_size=16, max_size=16).filter(lambda c: any(x & 7 for x in c)))
@settings(max_examples=20, deadline=None)
def test_least_squares_above_the_window_is_the_least(codes: list[int]) -> None:
    for d in (9, 10, 12):
        cast = Cast([codes + [0] * 16], [[127 + d]], m=0)
        check_everything(cast)
        check_inexact_blocks(cast)


@pytest.mark.parametrize("m", [-126, -100, 0, 100, 119])
def test_block_scale_table_for_every_byte(m: int) -> None:
    table = mxfp4_to_nvfp4.block_scale_table(m)
    assert len(table) == 256
    for byte in range(255):
        d = byte - 127 - m
        if -9 <= d <= 8:
            assert reference.e4m3(table[byte]) == Fraction(2) ** d
        else:
            assert table[byte] == 0
    assert table[255] == 0


@pytest.mark.parametrize("code", range(16))
def test_every_code_at_every_exponent_in_and_around_the_window(code: int) -> None:
    for d in range(-14, 13):
        cast = Cast([[code] * 32], [[127 + d]], m=0)
        check_everything(cast)
        check_inexact_blocks(cast)


# ---- the edge cases, one by one --------------------------------------------------------------------------------------

ZERO = [0] * 32
FOUR = [6] * 32
MIXED = list(range(16)) * 2
"""All sixteen codes: cannot be shifted."""


def test_zero_block_with_byte_127_does_not_push_real_blocks_out() -> None:
    """Model-Optimizer takes k_max from the zero block (0) and so loses the block at k = -20."""
    cast = Cast([ZERO + MIXED], [[127, 107]])
    assert cast.m == -28
    assert not cast.report.inexact
    assert cast.before[0][32:] == cast.after[0][32:]
    check_everything(cast)


def test_zero_block_with_byte_0_beside_real_blocks() -> None:
    cast = Cast([ZERO + MIXED], [[0, 127]])
    assert cast.m == -8
    assert cast.scales.tolist() == [[1, 1, 0x78, 0x78]]  # 2^-9 and 2^8
    check_everything(cast)


@pytest.mark.parametrize("byte", [0, 1, 100, 127, 200, 254])
def test_an_all_zero_matrix_gets_m_0_and_keeps_its_codes(byte: int) -> None:
    cast = Cast([[0, 8] * 16], [[byte]])
    assert cast.m == 0
    assert cast.codes_stay
    assert reference.e4m3(int(cast.scales[0, 0])) == Fraction(2) ** min(max(byte - 127, -9), 8)
    check_everything(cast)


def test_a_zero_half_block_beside_a_live_one_has_no_say() -> None:
    """Within one 32-block: the first half is zero, the second decides; the first still gets a positive scale."""
    cast = Cast([[0] * 16 + [7] * 16 + MIXED], [[127 - 30, 127]], m=-8)
    assert cast.scales[0, 0] == 1
    assert {(b.row, b.column) for b in cast.report.inexact} == {(0, 16)}
    check_everything(cast)


def test_byte_0_with_non_zero_codes_counts_as_two_to_the_minus_127() -> None:
    """Model-Optimizer reports bytes {0, 118} over codes 4 as lossless and writes wrong values."""
    cast = Cast([FOUR + FOUR], [[0, 118]])
    assert cast.chosen.inexact_half_blocks > 0
    assert {(b.row, b.column) for b in cast.report.inexact} == {(0, 0), (0, 16)}
    assert {b.source_exponent for b in cast.report.inexact} == {-127}
    assert cast.before[0][32:] == cast.after[0][32:]
    check_everything(cast)
    check_inexact_blocks(cast)


def test_byte_0_alone_is_exact_under_a_normal_global_scale() -> None:
    cast = Cast([MIXED], [[0]])
    assert cast.m == -126
    assert cast.before == cast.after
    assert not cast.report.inexact


@pytest.mark.parametrize("span", range(18))
def test_from_byte_0_upwards_m_stays_normal_and_exact(span: int) -> None:
    cast = Cast([MIXED + MIXED], [[0, span]])
    assert cast.m >= -126
    assert np.float32(2.0**cast.m) >= np.finfo(np.float32).tiny
    assert cast.before == cast.after


def test_byte_254_is_exact_and_its_global_scale_finite() -> None:
    cast = Cast([MIXED], [[254]])
    assert cast.m == 119
    assert cast.before == cast.after
    assert np.isfinite(np.float32(2.0**cast.m))


def test_byte_255_is_never_an_exponent() -> None:
    """Model-Optimizer takes it for 2^128 and so zeroes the whole matrix. Here no table entry exists for it."""
    assert all(mxfp4_to_nvfp4.block_scale_table(m)[255] == 0 for m in range(-126, 121))


def test_minus_zero_is_copied() -> None:
    cast = Cast([[8, 0] * 8 + [8, 7] * 8], [[127]])
    assert cast.codes_stay
    assert [v.negative for v in cast.after[0][:16]] == [True, False] * 8
    check_everything(cast)


def test_minus_zero_survives_renormalisation() -> None:
    cast = Cast([[8, 0, 6, 14] * 8 + MIXED], [[127 - 20, 127]])
    assert cast.report.renormalised == 2
    assert cast.before == cast.after
    check_everything(cast)


def test_minus_zero_survives_requantization() -> None:
    cast = Cast([[8, 9] * 16 + MIXED], [[127 - 40, 127]])
    assert len(cast.report.inexact) == 2
    assert [v.negative for v in cast.after[0][:32]] == [True] * 32


def test_span_17_is_exact_and_span_18_is_not() -> None:
    assert not Cast([MIXED + MIXED], [[110, 127]]).report.inexact
    assert len(Cast([MIXED + MIXED], [[109, 127]]).report.inexact) == 2


@pytest.mark.parametrize(("codes", "reach"), [([6], 3), ([4, 6, 7], 2), ([2, 4, 5, 6, 7], 1), ([1], 0), ([3], 0)])
def test_how_far_below_the_window_a_block_stays_exact(codes: list[int], reach: int) -> None:
    block = (codes * 32)[:32]
    for down in range(1, 5):
        cast = Cast([block + MIXED], [[110 - down, 127]])
        assert bool(cast.report.inexact) == (down > reach)
        check_everything(cast)


@pytest.mark.parametrize(("codes", "reach"), [([1], 3), ([1, 2, 3], 2), ([1, 2, 3, 4, 5], 1), ([6], 0), ([7], 0)])
def test_how_far_above_the_window_a_block_stays_exact(codes: list[int], reach: int) -> None:
    block = (codes * 32)[:32]
    for up in range(1, 5):
        cast = Cast([MIXED + block], [[110, 127 + up]])
        assert bool(cast.report.inexact) == (up > reach)
        check_everything(cast)


def test_the_two_halves_of_a_block_go_their_own_ways() -> None:
    """One half can be halved, the other cannot: exact and inexact under different block scales."""
    cast = Cast([[6] * 16 + list(range(16)) + MIXED], [[108, 127]])
    assert cast.report.renormalised == 1
    assert [(b.row, b.column) for b in cast.report.inexact] == [(0, 16)]
    check_everything(cast)


def test_where_all_block_scales_are_normal_the_codes_are_not_even_read() -> None:
    cast = Cast([MIXED, FOUR], [[113], [127]])
    assert cast.reads == 0
    assert cast.codes_stay


def test_a_block_outside_the_window_that_is_zero_leaves_the_codes_alone() -> None:
    cast = Cast([ZERO + MIXED], [[0, 127]])
    assert cast.reads == 2  # what lies outside, and what is under a subnormal scale
    assert cast.report.subnormal_scales == 2 and cast.report.subnormal_live == 0
    assert cast.codes_stay


def test_block_scales_are_normal_where_the_span_is_at_most_14() -> None:
    """Some kernels misread subnormal block scales: k_max at 2^8 keeps as many normal as can be."""
    assert Cast([MIXED * 2], [[113, 127]]).report.subnormal_scales == 0
    assert Cast([MIXED * 2], [[112, 127]]).report.subnormal_scales == 2


def test_a_new_report_is_empty() -> None:
    assert NVFP4Report() == NVFP4Report(0, 0, 0, 0, [])
