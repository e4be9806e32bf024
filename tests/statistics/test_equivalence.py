"""What an error can show: the published figures, and the power promised, kept in simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from truecast.statistics.equivalence import Estimate, detectable, margin_in_reach, smallest_margin


def test_a_published_difference_that_was_called_not_significant() -> None:
    """81.3% against 82.3% with a standard error of 1.6 points: what it excludes, and what it could have shown."""
    published = Estimate(81.3 - 82.3, 1.6, math.inf)
    assert published.interval() == (pytest.approx(-4.1, abs=0.05), pytest.approx(2.1, abs=0.05))
    assert smallest_margin(published.interval(0.90)) == pytest.approx(3.6, abs=0.05)
    assert detectable(published) == pytest.approx(4.5, abs=0.05)
    assert margin_in_reach(published) == pytest.approx(4.7, abs=0.05)


def drawn(truth: float, n: int, count: int) -> list[Estimate]:
    x = np.random.default_rng(5).normal(truth, 1, (count, n))
    return [Estimate(float(row.mean()), float(row.std(ddof=1)) / math.sqrt(n), n - 1) for row in x]


@pytest.mark.parametrize("n", [10, 100])
def test_the_detectable_difference_is_found_in_four_of_five(n: int) -> None:
    truth = detectable(Estimate(0, 1 / math.sqrt(n), n - 1))
    found = np.mean([not low <= 0 <= high for low, high in (e.interval() for e in drawn(truth, n, 3000))])
    assert found == pytest.approx(0.8, abs=0.025)


@pytest.mark.parametrize("n", [10, 100])
def test_the_margin_in_reach_is_shown_in_four_of_five(n: int) -> None:
    margin = margin_in_reach(Estimate(0, 1 / math.sqrt(n), n - 1))
    shown = np.mean([smallest_margin(e.interval(0.90)) < margin for e in drawn(0, n, 3000)])
    assert shown == pytest.approx(0.8, abs=0.035)


def test_tost_errs_in_one_of_twenty_at_the_edge() -> None:
    wrong = np.mean([smallest_margin(e.interval(0.90)) < 0.5 for e in drawn(-0.5, 100, 3000)])
    assert wrong == pytest.approx(0.05, abs=0.012)
