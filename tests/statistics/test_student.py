"""The t quantile against scipy's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from truecast.statistics.student import t_quantile


@settings(max_examples=60)
@given(st.floats(0.001, 0.999), st.floats(0.6, 1e5))
def test_quantiles_are_those_of_scipy(probability: float, degrees: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("bad", [(0.0, 5), (1.0, 5), (0.5, 0), (0.5, -1), (float("nan"), 5)])
def test_outside_the_domain(bad: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(*bad)


def test_without_end_of_degrees_it_is_normal() -> None:
    assert t_quantile(0.975, float("inf")) == pytest.approx(1.959964, abs=1e-6)
