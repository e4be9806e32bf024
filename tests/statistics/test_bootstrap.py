"""BCa against scipy's bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from truecast.statistics import bootstrap
from truecast.statistics.clusters import Clusters, by_document


def skewed(groups: int) -> Clusters:
    rng = np.random.default_rng(3)
    lengths = rng.integers(5, 60, groups)
    doc = np.repeat(np.arange(groups), lengths)
    return by_document(np.repeat(rng.lognormal(0, 0.7, groups), lengths) * rng.lognormal(0, 1, len(doc)), doc)


@pytest.mark.parametrize("groups", [8, 40])
def test_it_is_scipys_interval(groups: int) -> None:
    clusters = skewed(groups)

    def mean(sums: np.ndarray, tokens: np.ndarray, axis: int) -> np.ndarray:
        return sums.sum(axis=axis) / tokens.sum(axis=axis)

    judge = stats.bootstrap(
        (clusters.sums, clusters.tokens), mean, paired=True, vectorized=True, n_resamples=20000, rng=0
    ).confidence_interval
    low, high = bootstrap.bca_interval(clusters)
    near = 0.05 * (judge.high - judge.low)  # both ends are quantiles of random draws
    assert low == pytest.approx(judge.low, abs=near)
    assert high == pytest.approx(judge.high, abs=near)


def test_the_same_positions_give_the_same_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = skewed(20)
    first = bootstrap.bca_interval(clusters)
    assert bootstrap.bca_interval(clusters) == first
    monkeypatch.setattr(bootstrap, "_CELLS", 60)  # three draws at a time rather than all
    assert bootstrap.bca_interval(clusters) == first


def test_documents_that_agree() -> None:
    assert bootstrap.bca_interval(Clusters(np.array([2.0, 3.0]), np.array([1.0, 1.5]), 0.0)) == (0.5, 0.5)
