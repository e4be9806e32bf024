"""Means over problems: by hand, at the edges, and how often the intervals hold on simulated evals.

The bounds of the simulation can fail: 1,500 evals have a standard error of 0.6 points, and pooling the answers as if they
were independent does fail.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.eval_coverage import World, answers, measure
from truecast.statistics.clusters import by_document, cr1_error
from truecast.statistics.equivalence import TOST_LEVEL
from truecast.statistics.matched import matched_interval
from truecast.statistics.problems import difference, score_interval
from truecast.statistics.student import t_quantile

PER_CELL = 1500


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("n", [30, 100, 198])
def test_intervals_cover_and_tost_rarely_errs(n: int, k: int) -> None:
    found = measure(World(n, k, loss=0.1), PER_CELL, 3)
    assert 93 <= found["covered"] <= 97.5
    assert 93 <= found["score"] <= 97.5
    assert found["false"] <= 6  # 5 and two standard errors


def test_truncation_clusters_and_losses_that_go_one_way() -> None:
    cut = measure(World(60, 4, loss=0.03, cut=0.2), PER_CELL, 4)
    assert 93 <= cut["covered"] <= 97.5 and cut["bounds"] >= 95
    assert 93 <= measure(World(200, 4, clustered=True), PER_CELL, 5)["covered"] <= 97.5
    for k in (1, 8):
        assert measure(World(100, k, loss=0.03, one_sided=True), PER_CELL, 6)["covered"] >= 93


def lost_and_gained(lost: int, gained: int, n: int) -> np.ndarray:
    """Differences of ``n`` problems, each -1, 1 or 0."""
    return np.repeat([-1.0, 1.0, 0.0], [lost, gained, n - lost - gained])


@pytest.mark.parametrize("matched", [True, False])
@pytest.mark.parametrize(("n", "loss"), [(30, 0.1), (100, 0.03), (100, 0.05), (100, 0.1), (198, 0.03), (198, 0.1)])
def test_tost_errs_in_at_most_5_percent_where_problems_are_only_lost(n: int, loss: float, matched: bool) -> None:
    chance = 0.0  # exact: the count of losses is binomial
    for lost in range(int(n * loss) + 1):
        if difference(lost_and_gained(lost, 0, n), matched=matched).interval(TOST_LEVEL)[0] > -loss:
            chance += math.comb(n, lost) * loss**lost * (1 - loss) ** (n - lost)
    assert chance <= 0.05


def test_tost_rarely_errs_where_few_problems_are_gained_and_in_groups() -> None:
    nearly = measure(World(198, 8, loss=0.03, one_sided=True, gained=0.005), PER_CELL, 7)
    grouped = measure(World(500, 8, loss=0.1, one_sided=True, clustered=True), PER_CELL, 8)
    assert nearly["false"] <= 6 and grouped["false"] <= 6  # 5 and two standard errors
    assert nearly["covered"] >= 93 and grouped["covered"] >= 93


def test_answers_pooled_as_independent_do_not_cover() -> None:
    world = World(60, 8, accuracy=0.5, apart=1.0)
    rng = np.random.default_rng(1)
    a, b = (answers(world, chance, rng)[0] for chance in world.chances(rng, 500))
    pooled = np.sqrt((a.mean(1) * (1 - a.mean(1)) + b.mean(1) * (1 - b.mean(1))) / (60 * 8))
    assert np.mean(np.abs(b.mean(1) - a.mean(1)) <= 1.96 * pooled) < 0.8


def test_three_problems_by_hand() -> None:
    found = difference(np.array([0.5, -0.25, 0.0]))
    mean, squares = 0.25 / 3, 0.5**2 + 0.25**2 - 0.25**2 / 3
    assert found.mean == pytest.approx(mean)
    assert found.se == pytest.approx(math.sqrt(squares / 6))
    error = math.sqrt((squares + (0.5**2 + 0.25**2) / 2) / 6)
    assert found.interval()[1] == pytest.approx(min(mean + t_quantile(0.975, 2) * error, 1))


def test_skewness_by_hand() -> None:
    found = difference(lost_and_gained(2, 0, 8))
    cubes, squares = 2 * -(0.75**3) + 6 * 0.25**3, 2 * 0.75**2 + 6 * 0.25**2
    assert found.skew == pytest.approx(cubes / squares**1.5)
    t, error = t_quantile(0.95, 7), math.sqrt((squares + 1) / 56)
    low, high = found.interval(TOST_LEVEL)
    assert low == pytest.approx(-0.25 - (t - found.skew * (1 + 2 * t * t) / 6) * error)
    assert high == pytest.approx(-0.25 + t * error)


@pytest.mark.parametrize(("lost", "gained", "corrected"), [(6, 2, True), (5, 2, False), (2, 6, True), (1, 0, True)])
def test_skewness_counts_where_three_of_four_differ_one_way(lost: int, gained: int, corrected: bool) -> None:
    assert (difference(lost_and_gained(lost, gained, 40)).skew != 0) == corrected


def test_equal_differences_have_no_skewness() -> None:
    assert difference(np.full(7, 0.1)).skew == 0


@given(
    st.lists(st.sampled_from([-1.0, -0.625, -0.125, 0.0, 0.0, 0.25, 1.0]), min_size=2, max_size=60),
    st.booleans(),
    st.booleans(),
)
def test_the_interval_is_mirrored_nested_and_never_shortened(drawn: list[float], whole: bool, grouped: bool) -> None:
    values = np.trunc(drawn) if whole else np.array(drawn)
    group = np.arange(len(values)) // 3 if grouped else None
    found, mirrored = difference(values, group, matched=whole), difference(-values, group, matched=whole)
    if found is None:
        return
    (low, high), (lower, higher) = found.interval(TOST_LEVEL), found.interval(0.95)
    assert -1 <= lower <= low <= found.mean + 1e-12 and found.mean - 1e-12 <= high <= higher <= 1
    assert mirrored.interval(TOST_LEVEL) == pytest.approx((-high, -low), abs=1e-9)
    plain = replace(found, skew=0.0).interval(TOST_LEVEL)
    assert low <= plain[0] and plain[1] <= high and (low == plain[0] or high == plain[1])


def test_groups_make_it_the_clustered_error() -> None:
    rng = np.random.default_rng(0)
    group = np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 3])
    values = rng.uniform(-1, 1, 10)
    assert difference(values, group).se == pytest.approx(cr1_error(by_document(values, group)))
    alone = difference(values, np.arange(10))
    assert alone.se == pytest.approx(difference(values).se) == pytest.approx(values.std(ddof=1) / math.sqrt(10))


def test_one_answer_each_takes_the_interval_of_matched_pairs() -> None:
    values = np.array([1.0] * 3 + [-1.0] * 5 + [0.0] * 40)
    assert difference(values, matched=True).interval() == matched_interval(3, 5, 48)
    assert difference(values).interval() != matched_interval(3, 5, 48)


@pytest.mark.parametrize("matched", [True, False])
def test_where_no_problem_differs_nothing_is_claimed_for_free(matched: bool) -> None:
    low, high = difference(np.zeros(30), matched=matched).interval(0.90)
    assert high == -low == pytest.approx(1 - 0.05 ** (1 / 30))  # the rule of three: about 3 / n


def test_one_group_has_no_interval() -> None:
    assert difference(np.array([0.5])) is None
    assert difference(np.array([0.5, 1.0]), np.zeros(2, np.int64)) is None
    assert score_interval(np.array([0.5])) is None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_score_without_spread_is_not_certain(share: float) -> None:
    low, high = score_interval(np.full(20, share)) or (0, 0)
    assert low <= share <= high and high - low == pytest.approx(2.093**2 / (20 + 2.093**2), rel=1e-3)
