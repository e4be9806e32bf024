from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from truecast.bench.spread import interval_over_runs, median_interval


@pytest.mark.parametrize("runs", [2, 3, 10, 40])
def test_interval_over_runs_is_students(runs: int) -> None:
    values = list(np.random.default_rng(runs).normal(30, 2, runs))
    expected = stats.t.interval(0.95, runs - 1, np.mean(values), stats.sem(values))
    assert interval_over_runs(values) == pytest.approx(expected, rel=1e-4)


def test_one_run_has_no_interval() -> None:
    assert interval_over_runs([30.0]) is None


@pytest.mark.parametrize("n", [6, 7, 25, 100, 500, 999, 1000, 1051, 1103, 3000, 100_000])
def test_median_interval_is_the_binomials(n: int) -> None:
    low, high = median_interval(list(range(n))) or (0, 0)
    k = int(low) + 1
    assert high == n - k
    assert stats.binom.cdf(k - 1, n, 0.5) <= 0.025, "covers at least 95%"
    assert stats.binom.cdf(k, n, 0.5) > 0.025, "and is no wider than it must be"


def test_few_requests_have_no_median_interval() -> None:
    assert median_interval([1.0] * 5) is None
