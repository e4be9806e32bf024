"""Scales of charts: round ticks inside, coordinates that keep the order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truecast.report.svg import HEIGHT, TOP, Scale, upwards


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (0.0, 0.021, False, [0, 0.005, 0.01, 0.015, 0.02]),
        (0.0, 1.06, False, [0, 0.5, 1.0]),
        (1.0, 48.0, False, [10, 20, 30, 40]),
        (1e-3, 0.1, True, [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1]),
        (1e-8, 1.0, True, [1e-8, 1e-6, 1e-4, 1e-2, 1.0]),
    ],
)
def test_ticks_are_round(low: float, high: float, log: bool, ticks: list[float]) -> None:
    assert Scale(low, high, 0, 100, log).ticks() == pytest.approx(ticks)


@given(st.lists(st.floats(1e-12, 1e6), min_size=1, max_size=8), st.booleans())
def test_figures_keep_their_order_and_stay_inside(figures: list[float], log: bool) -> None:
    y = upwards(figures, log)
    places = [y(f) for f in sorted(figures)]
    assert places == sorted(places, reverse=True)
    assert all(TOP <= place <= HEIGHT for place in places)
    assert 2 <= len(y.ticks()) <= 12


def test_a_chart_of_nothing_but_zeros() -> None:
    assert upwards([0.0, 0.0]).ticks()[0] == 0
    assert upwards([], log=True).ticks()
