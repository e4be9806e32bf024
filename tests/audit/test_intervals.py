"""The intervals: how often they cover on simulated corpora, and what they do at the edges.

The bounds of coverage can fail: 500 corpora have a standard error of 1 point, and the textbook interval does fail.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.interval_coverage import World, difference_coverage, mean_coverage
from truecast.audit.intervals import (
    difference_figure,
    excess_figure,
    mean_figure,
    positive_interval,
    short_figure,
    signed_interval,
)
from truecast.statistics.clusters import by_document
from truecast.statistics.student import t_quantile


@pytest.mark.parametrize("documents", [10, 30, 100])
@pytest.mark.parametrize("intraclass", [0.1, 0.5])
def test_the_interval_of_a_mean_covers(documents: int, intraclass: float) -> None:
    found = mean_coverage(World(intraclass=intraclass), documents, 800, 11, bootstrap=False)
    assert 93 <= found["interval"] <= 98
    assert found["interval"] > found["cr1"]


def test_the_textbook_interval_does_not() -> None:
    assert mean_coverage(World(intraclass=0.5), 10, 800, 11, bootstrap=False)["cr1"] < 90


@pytest.mark.parametrize("documents", [10, 30])
def test_the_interval_of_a_paired_difference_covers(documents: int) -> None:
    assert 93 <= difference_coverage(World(), documents, 500, 12, 1.0, 0.9)["paired"] <= 98


@pytest.mark.parametrize("ratio", [0.1, 0.95])
def test_the_interval_of_the_excess_covers(ratio: float) -> None:
    found = difference_coverage(World(), 30, 500, 12, ratio, 0.7)
    assert 93 <= found["excess"] <= 98
    assert 93 <= found["ratio"] <= 98


def test_two_documents_by_hand() -> None:
    figure = mean_figure(np.array([1.0, 3.0, 8.0]), np.array([0, 0, 1]))  # sums 4 and 8 of 2 and 1 tokens
    assert (figure["mean"], figure["documents"], figure["tokens"]) == (4.0, 2, 3)
    assert figure["se"] == pytest.approx(math.sqrt(2 * (4**2 + 4**2)) / 3)
    reach = t_quantile(0.975, 1) * figure["se"]
    assert figure["cr1"] == pytest.approx([4 - reach, 4 + reach])
    jackknife = math.log(8 / 2) / 2  # without one 8, without the other 2
    variance = (2 / 3 * 1 / 3 * math.log(8 / 2) ** 2) / (4 / 9)
    model = math.sqrt(math.expm1(variance) * 5 / 9)
    assert model > jackknife
    spread = math.exp(t_quantile(0.975, 1) * model)
    assert figure["interval"] == pytest.approx([4 / spread, 4 * spread])


@settings(max_examples=25)
@given(st.integers(2, 12), st.integers(0, 2**31), st.floats(0.01, 100))
def test_intervals_hold_the_mean_and_scale_with_the_unit(groups: int, seed: int, unit: float) -> None:
    rng = np.random.default_rng(seed)
    doc = np.r_[np.arange(groups), rng.integers(0, groups, 40 - groups)]
    x = rng.lognormal(0, 1.5, 40)
    one, other = mean_figure(x, doc), mean_figure(unit * x, doc)
    for name in ("interval", "cr1"):
        assert one[name][0] < one["mean"] < one[name][1]
    for name in ("interval", "cr1", "bca"):
        assert other[name] == pytest.approx([unit * end for end in one[name]], rel=1e-6)
    assert one["interval"][0] > 0


def test_one_document_has_no_interval_and_says_so() -> None:
    for figure in (
        mean_figure(np.ones(5), np.zeros(5, int)),
        difference_figure(np.ones(5), np.zeros(5, int)),
        excess_figure(np.ones(5), np.zeros(5), np.zeros(5, int)),
    ):
        assert figure["mean"] == 1.0
        assert [figure[key] for key in ("se", "interval", "cr1", "bca", "deff")] == [None] * 5
        assert figure["warning"].startswith("one document: no interval")
    assert short_figure(np.ones(5), np.zeros(5, int)) == {"mean": 1.0, "interval": None}


@pytest.mark.parametrize(("groups", "words"), [(3, "3 documents: too few"), (12, "12 documents"), (29, "with 20")])
def test_few_documents_warn(groups: int, words: str) -> None:
    warning = mean_figure(np.arange(1.0, groups + 1), np.arange(groups))["warning"]
    assert words in warning
    assert "use at least 30" in warning


def test_thirty_documents_do_not_warn() -> None:
    assert mean_figure(np.arange(1.0, 31), np.arange(30))["warning"] is None


def test_a_kl_of_zero_everywhere() -> None:
    figure = mean_figure(np.zeros(8), np.arange(8) // 2)
    assert (figure["mean"], figure["interval"], figure["bca"], figure["deff"]) == (0.0, [0.0, 0.0], [0.0, 0.0], None)


def test_documents_without_loss_are_no_obstacle() -> None:
    some = by_document(np.array([0.0, 0.0, 1.0, 2.0, 0.0]), np.arange(5))
    low, high = positive_interval(some)
    assert 0 < low < some.mean < high
    only_one = by_document(np.array([0.0, 0.0, 1.0]), np.arange(3))  # without it nothing is left
    assert positive_interval(only_one)[0] == 0.0
    assert positive_interval(only_one)[1] == signed_interval(only_one)[1]


def test_an_excess_of_nothing() -> None:
    x = np.random.default_rng(0).lognormal(size=60)
    figure = excess_figure(x, x, np.arange(60) // 2)
    assert figure["mean"] == 0.0
    assert figure["interval"][0] <= 0.0 <= figure["interval"][1]


def test_documents_that_stand_out_lower_the_degrees_of_freedom() -> None:
    rng = np.random.default_rng(0)
    calm, wild = rng.uniform(-1, 1, 50), np.r_[np.full(49, 0.01), 5.0] * rng.choice([-1, 1], 50)
    for x, more in ((calm, 1.0), (wild, 2.1)):
        figure = difference_figure(x, np.arange(50))
        assert np.diff(figure["interval"])[0] == pytest.approx(more * np.diff(figure["cr1"])[0], rel=0.12)


@pytest.mark.parametrize("size", [1e-150, 1e-90, 1.0, 1e90, 1e150])
def test_the_size_of_a_figure_is_no_matter(size: float) -> None:
    values, doc = np.array([3.0, -1.0, 2.0, 7.0, 1.0]), np.arange(5)
    low, high = signed_interval(by_document(values, doc))
    assert signed_interval(by_document(values * size, doc)) == pytest.approx((low * size, high * size), rel=1e-9)
