from __future__ import annotations

import math
from typing import Any

import pytest

from truecast.evals.scores import scores


def sample(correct: float, seed: int = 0, **given: Any) -> dict[str, Any]:
    base = {"truncated": False, "empty": False, "error": None, "tokens": 10, "most": 10, "measures": {}}
    return {"seed": seed, "correct": correct, **base, **given}


def failed(seed: int = 0) -> dict[str, Any]:
    return {"seed": seed, "correct": None, "truncated": False, "empty": False, "error": "503", "tokens": None}


def test_by_hand() -> None:
    cut = sample(0, 1, truncated=True, empty=True, tokens=100, most=100)
    problems = [
        {"id": "a", "samples": [sample(1), sample(1, 1)]},
        {"id": "b", "samples": [sample(1), cut]},
        {"id": "c", "samples": [sample(0), failed(1)]},
        {"id": "d", "samples": [failed(0), failed(1)]},
    ]
    found = scores(problems, 100)
    assert found["score"] == pytest.approx(0.5)  # means 1, 1/2, 0 of three problems
    assert found["se"] == pytest.approx(0.5 / math.sqrt(3))
    assert found["completed"] == pytest.approx(3 / 4)
    assert found["bounds"] == [pytest.approx(0.5), pytest.approx(2 / 3)]
    assert found["truncated"] == found["empty"] == pytest.approx(1 / 5)
    assert (found["asked"], found["answers"], found["errors"], found["scored_problems"]) == (8, 5, 3, 3)
    assert found["tokens"] == {"budget": 100, "counted": 5, "total": 140, "p50": 10, "p90": 100, "p99": 100, "max": 100}
    assert [s["score"] for s in found["per_seed"]] == [pytest.approx(2 / 3), 0.5]
    text = " ".join(found["warnings"])
    assert "3 of 8 answers are missing" in text
    assert "budget of 100 binds: 20.00% of the answers were cut off" in text
    assert "between 50.00% and 66.67%" in text


def test_a_correct_answer_that_was_cut_off_is_wrong_in_the_lower_bound() -> None:
    found = scores([{"id": "a", "samples": [sample(1, truncated=True)]}, {"id": "b", "samples": [sample(1)]}], 10)
    assert found["score"] == 1
    assert found["bounds"] == [0.5, 1]


def test_clusters_widen_the_error() -> None:
    alone = [{"id": str(n), "samples": [sample(n // 20)]} for n in range(40)]
    drawn = [{**p, "cluster": str(n // 10)} for n, p in enumerate(alone)]
    one, other = scores(alone, 10), scores(drawn, 10)
    assert one["score"] == other["score"]
    assert (other["unit"], other["clusters"]) == ("cluster", 4)
    assert other["se"] == pytest.approx(math.sqrt(4 / 3 * 4 * 25) / 40)
    assert other["se"] > 3 * one["se"]


def test_answers_to_one_problem_are_not_independent() -> None:
    few = scores([{"id": str(n), "samples": [sample(n % 2)]} for n in range(40)], 10)
    many = scores([{"id": str(n), "samples": [sample(n % 2, k) for k in range(8)]} for n in range(40)], 10)
    assert many["se"] == pytest.approx(few["se"])


def test_measures_are_of_all_that_there_was_to_get_right() -> None:
    marks = [[1, 1], [0, 3], [2, 4]]
    problems = [{"id": str(n), "samples": [sample(0, measures={"parts": m})]} for n, m in enumerate(marks)]
    found = scores(problems, 10)["measures"]["parts"]
    assert (found["score"], found["of"]) == (pytest.approx(3 / 8), 8)
    residuals = [m[0] - 3 / 8 * m[1] for m in marks]
    assert found["se"] == pytest.approx(math.sqrt(3 / 2 * sum(r * r for r in residuals)) / 8)


def test_no_usage_and_nothing_scored() -> None:
    unknown = scores([{"id": "a", "samples": [sample(1, tokens=None, most=None)]}], 10)
    assert unknown["tokens"] is None
    assert any("reports no usage" in w for w in unknown["warnings"])
    assert any("one problem: no interval" in w for w in unknown["warnings"])
    nothing = scores([{"id": "a", "samples": [failed()]}], 10)
    assert nothing["score"] is None
    assert nothing["errors"] == 1
