"""The simulated servers: their estimates average to the divergence, and the intervals cover it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import served_coverage
from benchmarks.served_coverage import CONTEXTS, VOCABULARY, World, bank, coverage, drawn

KINDS = 150


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_coverage, "KINDS", KINDS)


def test_over_all_tokens_the_estimates_average_to_the_divergence() -> None:
    found = bank(World(0.3), 5)
    p = np.diff(found.cumulative[:VOCABULARY], prepend=0.0)
    for side in (found.candidate, found.native):
        every = drawn(side, np.zeros(VOCABULARY, int), np.arange(VOCABULARY))
        for values in (every.estimate, every.log_ratio):
            assert p @ values == pytest.approx(side.exact[0], abs=1e-7)
        assert every.lower[0] < side.exact[0] < every.lower[0] + every.tail[0] * np.nanmax(every.spread)
        assert p @ ~every.inside == pytest.approx(every.tail[0])
    assert len(found.candidate.exact) == KINDS * CONTEXTS


def test_the_intervals_cover_where_those_without_skew_do_not() -> None:
    found = coverage(World(0.1), 10, 400, 7)
    for name in ("estimate", "log_ratio", "lower", "excess_estimate", "excess_log_ratio"):
        assert 90 <= found[name] <= 99.5, name
    assert found["estimate_jackknife"] < found["estimate"]
    assert found["below"] >= 97
    assert found["above"] >= 97
