"""Matched pairs: Tango's interval against its definition solved by scipy, McNemar against scipy's binomial test."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from truecast.statistics.matched import matched_interval, mcnemar


def judge_score(gained: int, lost: int, n: int, difference: float) -> float:
    """Standard errors from ``difference``, the share of losses being the likeliest under it, found by search."""

    def unlikely(loss: float) -> float:
        gain, same = loss + difference, 1 - 2 * loss - difference
        return -sum(
            k * math.log(max(p, 1e-300)) for k, p in ((gained, gain), (lost, loss), (n - gained - lost, same)) if k
        )

    ends = max(0.0, -difference), (1 - difference) / 2
    loss = optimize.minimize_scalar(unlikely, bounds=ends, method="bounded", options={"xatol": 1e-12}).x
    return (gained - lost - n * difference) / math.sqrt(n * (2 * loss + difference * (1 - difference)))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 150))
def test_the_ends_are_where_the_score_test_rejects(gained: int, lost: int, same: int) -> None:
    n = gained + lost + same
    low, high = matched_interval(gained, lost, n)
    assert judge_score(gained, lost, n, low) == pytest.approx(1.959964, abs=2e-3)
    assert judge_score(gained, lost, n, high) == pytest.approx(-1.959964, abs=2e-3)


def test_no_pair_differs() -> None:
    z2 = 1.959964**2
    low, high = matched_interval(0, 0, 30)
    assert (low, high) == (pytest.approx(-z2 / (30 + z2)), pytest.approx(z2 / (30 + z2)))


def test_sides_swapped_and_level() -> None:
    low, high = matched_interval(7, 2, 60)
    assert matched_interval(2, 7, 60) == (pytest.approx(-high), pytest.approx(-low))
    inner = matched_interval(7, 2, 60, 0.90)
    assert low < inner[0] < 5 / 60 < inner[1] < high


def test_all_differ() -> None:
    low, high = matched_interval(5, 0, 5)
    assert low < 1 and high == 1


@pytest.mark.parametrize("counts", [(3, 2, 4), (-1, 0, 4), (0, 0, 0)])
def test_counts_that_do_not_fit(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="pairs"):
        matched_interval(*counts)


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_the_binomial_test(gained: int, lost: int) -> None:
    judge = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(judge, rel=1e-9)


def test_mcnemar_of_many_pairs() -> None:
    assert mcnemar(50_000, 51_000) == pytest.approx(stats.binomtest(50_000, 101_000).pvalue, rel=1e-6)
