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
    estimate_excess_figure,
    estimate_figure,
    excess_figure,
    excess_interval,
    mean_figure,
    positive_interval,
    short_figure,
    signed_interval,
)
from truecast.statistics.clusters import Clusters, by_document
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
    figure = mean_figure(np.array([1.0, 3.0, 3.0]), np.array([0, 0, 1]))  # sums 4 and 3 of 2 and 1 tokens
    mean = 7 / 3
    assert (figure["mean"], figure["documents"], figure["tokens"]) == (mean, 2, 3)
    assert figure["se"] == pytest.approx(math.sqrt(2 * 2 * (2 / 3) ** 2) / 3)
    reach = t_quantile(0.975, 1) * figure["se"]
    assert figure["cr1"] == pytest.approx([mean - reach, mean + reach])
    jackknife = (math.log(3 / mean) + 1 - 2 / mean) / 2  # without one 3, above the mean; without the other 2, below it
    variance = (2 / 3 * 1 / 3 * math.log(3 / 2) ** 2) / (4 / 9)
    model = math.sqrt(math.expm1(variance) * 5 / 9)
    assert jackknife < model < math.sqrt(4 / 9 + 1 / 9 * (3 - 1) ** 2), "nor is it better to take the first for 0"
    spread = math.exp(t_quantile(0.975, 1) * model)
    assert figure["interval"] == pytest.approx([mean / spread, mean * spread])


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
        estimate_figure(np.ones(5), np.zeros(5), np.zeros(5, int)),
        estimate_excess_figure(np.ones(5), np.zeros(5), (np.zeros(5), np.zeros(5)), np.zeros(5, int)),
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
    assert 0 < low < some.mean < high < 20 * some.mean
    only_one = by_document(np.array([0.0, 0.0, 1.0]), np.arange(3))  # without it nothing is left
    low, high = positive_interval(only_one)
    assert 0 < low < only_one.mean / 4
    assert 4 * only_one.mean < high < 1e4 * only_one.mean


TOKENS = np.array([24.0, 63, 53, 17, 40, 91, 78, 82, 256, 256, 256])
DIALOGUES_AND_TEXTS = Clusters(
    TOKENS,
    TOKENS * [6e-7, 1.5e-7, 6.4e-7, 2.7e-7, 8.7e-4, 6.2e-6, 2.5e-6, 2.7e-6, 4.55e-3, 4.61e-3, 4.67e-3],
    0.0,
)
"""nano-K3 as W4AFP8: answers that the model is sure of, one that it is not, and three texts."""


def test_documents_that_cost_almost_nothing_do_not_stretch_the_interval() -> None:
    low, high = positive_interval(DIALOGUES_AND_TEXTS)
    assert 0.001 < low < 0.0022
    assert 0.004 < high < 0.008, "the texts cost 0.0046, and 63% of the tokens are theirs"
    floor = Clusters(TOKENS, TOKENS * 1.2e-5, 0.0)
    assert excess_interval(DIALOGUES_AND_TEXTS, floor)[0] > 0.001


@settings(max_examples=50)
@given(st.integers(3, 30), st.integers(1, 30), st.integers(0, 2**31), st.floats(4, 250))
def test_how_cheap_a_cheap_document_is_says_nothing_of_the_upper_end(
    dear: int, cheap: int, seed: int, power: float
) -> None:
    rng = np.random.default_rng(seed)
    n = rng.integers(10, 200, dear + cheap).astype(float)
    sums = n * np.r_[rng.lognormal(0, 0.7, dear), 10 ** rng.uniform(-9, -4, cheap)]
    cheaper, free = sums.copy(), sums.copy()
    cheaper[-1] *= 10**-power
    free[-1] = 0.0
    low, high = positive_interval(Clusters(n, sums, 0.0))
    assert positive_interval(Clusters(n, cheaper, 0.0)) == pytest.approx((low, high), rel=0.01)
    assert positive_interval(Clusters(n, free, 0.0)) == pytest.approx((low, high), rel=0.01)


@pytest.mark.parametrize("documents", [30, 100])
@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("cheap", [0.1, 0.8])
def test_the_interval_covers_where_many_documents_cost_nothing(documents: int, brief: bool, cheap: float) -> None:
    found = mean_coverage(World(intraclass=0.5, cheap=cheap, brief=brief), documents, 300, 11, bootstrap=False)
    assert 92 <= found["interval"] <= 99.5
    assert found["upper"] < 5


def test_the_excess_covers_where_many_documents_cost_nothing() -> None:
    found = difference_coverage(World(intraclass=0.5, cheap=0.5), 30, 300, 12, 0.1, 0.7)
    assert 92 <= found["excess"] <= 99.5
    assert 91 <= found["ratio"] <= 99


def test_the_excess_over_a_floor_in_proportion_is_a_mean_in_proportion() -> None:
    x = by_document(np.random.default_rng(4).lognormal(0, 1.5, 60), np.arange(60) // 5)
    low, high = positive_interval(x)
    half = Clusters(x.tokens, x.sums / 2, 0.0)
    assert excess_interval(x, half) == pytest.approx((low / 2, high / 2))
    other = difference_coverage(World(1.5, 0.5), 30, 300, 12, 0.5, 0.99)
    assert other["excess"] >= 92


def test_the_skew_of_a_lower_bound_is_the_estimates_too() -> None:
    rng = np.random.default_rng(3)
    lower = rng.lognormal(0, 1.5, 12)
    noise = rng.normal(0, 1e-6, 12)
    bound, figure = mean_figure(lower, np.arange(12)), estimate_figure(lower + noise, lower, np.arange(12))
    assert figure["interval"] == pytest.approx(bound["interval"], rel=1e-4)
    lower, noise = rng.lognormal(0, 0.3, 12), rng.normal(0, 50, 12)
    noisy = estimate_figure(lower + noise, lower, np.arange(12))["interval"]
    assert noisy == pytest.approx(difference_figure(lower + noise, np.arange(12))["interval"], rel=0.05)
    excess = estimate_excess_figure(lower + noise, noise, (lower, 0.1 * lower), np.arange(12))
    assert excess["mean"] == pytest.approx(lower.mean())
    assert excess["interval"][0] < lower.mean() < excess["interval"][1]


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
