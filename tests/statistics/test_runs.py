"""Ratios of runs against scipy's two-sample t interval of the logarithms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from truecast.statistics.runs import ratio_of_runs

A, B = (29.6, 30.1, 29.9), (34.1, 33.8)


def test_it_is_students_interval_of_the_logs() -> None:
    found = ratio_of_runs(A, B)
    judge = stats.ttest_ind(np.log(B), np.log(A)).confidence_interval(0.95)
    assert found.value == pytest.approx(stats.gmean(B) / stats.gmean(A))
    assert found.interval() == (pytest.approx(math.exp(judge.low)), pytest.approx(math.exp(judge.high)))


def test_one_run_on_each_side_has_no_interval() -> None:
    found = ratio_of_runs(A[:1], B[:1])
    assert (found.value, found.interval()) == (pytest.approx(34.1 / 29.6), None)


def test_intervals_cover() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(1500):
        a, b = np.exp(0.02 * rng.standard_normal(2)), 1.1 * np.exp(0.02 * rng.standard_normal(2))
        low, high = ratio_of_runs(list(a), list(b)).interval() or (0, 0)
        hits += low <= 1.1 <= high
    assert 0.93 <= hits / 1500 <= 0.97


@pytest.mark.parametrize("bad", [[], [0.0], [-1.0], [math.nan], [math.inf]])
def test_what_is_no_rate(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="positive rates"):
        ratio_of_runs(bad, [1.0])
