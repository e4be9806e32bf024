"""Two runs of a task: pairing, errors, truncation, and what is refused as no comparison."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.evals.records import CUT, FAILED, record, sample
from truecast.errors import InputError
from truecast.evals.compare import compare_evals

RIGHT, WRONG = [sample(True)], [sample(False)]


def drawn(chances: np.ndarray, answers: int, seed: int) -> list[list[dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    return [[sample(bool(rng.random() < p)) for _ in range(answers)] for p in chances]


CHANCES = np.random.default_rng(0).beta(1, 0.25, 60)


def test_the_error_is_that_of_differences_by_problem() -> None:
    a, b = drawn(CHANCES, 8, 1), drawn(0.97 * CHANCES, 8, 2)
    found = compare_evals(record(a), record(b))
    means = [[np.mean([s["correct"] for s in p]) for p in side] for side in (a, b)]
    d = np.array(means[1]) - np.array(means[0])
    figures = found["difference"]
    assert figures["mean"] == pytest.approx(d.mean())
    assert figures["se"] == pytest.approx(stats.sem(d))
    within = [np.var([s["correct"] for s in p], ddof=1) / 8 for side in (a, b) for p in side]
    assert figures["within"] == pytest.approx(math.sqrt(sum(within)) / 60)
    assert figures["within"] ** 2 + figures["between"] ** 2 == pytest.approx(max(figures["se"], figures["within"]) ** 2)
    judge = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    low, high = figures["interval"]
    assert low < judge.low and high > judge.high and high - low < 1.05 * (judge.high - judge.low)
    assert found["mcnemar"] is None and found["truncation"] is None


def test_one_answer_each_has_mcnemar() -> None:
    a = [RIGHT] * 20 + [WRONG] * 3 + [RIGHT] * 9
    b = [RIGHT] * 20 + [RIGHT] * 3 + [WRONG] * 9
    found = compare_evals(record(a), record(b))
    assert found["mcnemar"] == {"only_a": 9, "only_b": 3, "p": pytest.approx(stats.binomtest(3, 12).pvalue)}
    assert found["difference"]["within"] is None
    assert found["difference"]["method"] == "score interval of matched pairs, far end by skewness"


def test_shares_and_several_answers_have_none() -> None:
    a, b = [[sample(0.5)], RIGHT, WRONG], [RIGHT, [sample(0.25)], WRONG]
    assert compare_evals(record(a), record(b))["mcnemar"] is None


def test_errors_never_count_as_wrong() -> None:
    failed = sample(None, **FAILED)
    a = [[sample(True), failed], [sample(True), sample(True)], [sample(True), sample(False)]]
    b = [[sample(True), sample(True)], [sample(True), failed], [failed, failed]]
    found = compare_evals(record(a), record(b))
    assert found["difference"]["mean"] == 0 and found["problems"] == 2
    assert found["left_out"] == {"not_in_both": 0, "without_a_scored_sample": 1}
    assert (found["a"]["errors"], found["b"]["errors"]) == (1, 1)
    assert any("without a scored sample" in warning for warning in found["warnings"])


def test_truncated_answers_bound_the_difference() -> None:
    a = [RIGHT, [sample(False, **CUT)], RIGHT, WRONG]
    b = [RIGHT, RIGHT, [sample(False, **CUT)], [sample(True, **CUT)]]
    found = compare_evals(record(a), record(b))
    cut = found["truncation"]
    assert (cut["both_wrong"], cut["both_right"]) == (0, 0.25)
    assert cut["bounds"] == [-0.25, 0.5]  # A's right and B's wrong; A's wrong and B's right
    assert cut["interval"][0] < found["difference"]["interval"][0]
    assert found["b"] | {"score": 0.75, "truncated": 0.5, "completed": 1.0, "bounds": [0.5, 1.0]} == found["b"]
    assert any("25.0% and 50.0% of the answers were cut off" in warning for warning in found["warnings"])


def test_equivalence_needs_a_margin_wide_enough() -> None:
    a, b = record(drawn(CHANCES, 8, 1)), record(drawn(CHANCES, 8, 2))
    least = compare_evals(a, b)["equivalence"]
    assert least["margin"] is None and least["shown"] is None
    assert compare_evals(a, b, least["smallest_margin"] * 1.01)["equivalence"]["shown"] is True
    assert compare_evals(a, b, least["smallest_margin"] * 0.99)["equivalence"]["shown"] is False


def test_the_same_answers_twice_do_not_show_everything() -> None:
    run = record([RIGHT] * 30)
    found = compare_evals(run, run, 0.01)
    assert found["difference"]["se"] == 0 and found["equivalence"]["shown"] is False
    assert found["equivalence"]["smallest_margin"] == pytest.approx(1 - 0.05 ** (1 / 30))


def test_clusters_widen_what_problems_alone_do_not() -> None:
    a, b = [RIGHT] * 40, [WRONG, WRONG, WRONG, WRONG] + [RIGHT] * 36
    names = [f"passage {i // 4}" for i in range(40)]
    alone, grouped = (compare_evals(record(a, c), record(b, c)) for c in (None, names))
    assert (grouped["clusters"], grouped["unit"], grouped["problems"]) == (10, "cluster", 40)
    assert grouped["difference"]["se"] > 1.9 * alone["difference"]["se"]
    assert grouped["mcnemar"] is None  # it would take problems of one passage as independent
    single = [f"passage {i}" for i in range(40)]
    assert compare_evals(record(a, single), record(b, single))["difference"] == alone["difference"]


def test_one_problem_has_no_interval() -> None:
    found = compare_evals(record([RIGHT]), record([WRONG]), 0.5)
    assert found["difference"]["interval"] is None and found["power"] is None
    assert found["equivalence"] == {"margin": 0.5, "shown": False, "smallest_margin": None}


def test_another_task_or_setting_is_no_comparison() -> None:
    a = record([RIGHT])
    with pytest.raises(InputError, match="the tasks differ"):
        compare_evals(a, record([RIGHT], task="hmmt"))
    settings = {"temperature": 1.0, "max_tokens": 16384, "samples": 8}
    with pytest.raises(InputError, match="max_tokens: 65536 against 16384"):
        compare_evals(a, record([RIGHT], settings=settings))


def test_other_problems_only_on_request() -> None:
    a, b = record([RIGHT, RIGHT, WRONG]), record([RIGHT, WRONG])
    with pytest.raises(
        InputError, match=r"problems that one of them lacks: 1, such as 'aime/2'.* 2 that both have with --common"
    ):
        compare_evals(a, b)
    found = compare_evals(a, b, common=True)
    assert (found["problems"], found["left_out"]["not_in_both"], found["difference"]["mean"]) == (2, 1, -0.5)
    assert any("left out" in warning for warning in found["warnings"])


def test_nothing_in_common() -> None:
    failed = [sample(None, **FAILED)]
    with pytest.raises(InputError, match="no problem was scored in both"):
        compare_evals(record([failed]), record([RIGHT]))


def test_clusters_that_differ() -> None:
    with pytest.raises(InputError, match="the clusters of problem 'aime/0' differ"):
        compare_evals(record([RIGHT], ["x"]), record([RIGHT], ["y"]))
