"""Two runs of one task, problem by problem: the difference, what it shows, and what it could have shown.

All differences are B less A, as shares of 1: A is the reference, B the candidate. The unit of sampling is the problem, or
the cluster of problems where the record names them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.evals.pairing import (
    Pairs,
    Score,
    as_right,
    as_scored,
    as_wrong,
    check_same,
    differences,
    groups,
    mean_score,
    paired,
)
from truecast.evals.record import Problem, Record
from truecast.statistics.equivalence import TOST_LEVEL, detectable, margin_in_reach, smallest_margin
from truecast.statistics.matched import mcnemar
from truecast.statistics.problems import Difference, difference, score_interval

FEW = 30
"""Below so many problems (or clusters) a reader is warned."""


def compare_evals(a: Record, b: Record, margin: float | None = None, *, common: bool = False) -> dict[str, Any]:
    """Compare two runs of one task. ``margin``: the difference (share of 1) within which they count as equivalent.

    ``common``: where one side lacks problems, compare those that both have; else that is refused.
    Returns the part of ``truecast.compare/1`` that docs/compare.md lists.
    Raises: InputError where task, settings or problems differ, or no problem was scored on both sides.
    """
    check_same(a, b)
    pairs, absent, unscored = paired(a, b, common)
    group = groups(pairs)
    per_problem = differences(pairs, as_scored, as_scored)
    found = difference(per_problem, group, matched=_matched(pairs))
    return {
        "kind": "eval",
        "task": a.task,
        "settings": dict(a.settings),
        "a": _side(a, [p for p, _ in pairs], group),
        "b": _side(b, [p for _, p in pairs], group),
        "problems": len(pairs),
        "clusters": None if group is None else int(group.max()) + 1,
        "unit": "problem" if group is None else "cluster",
        "left_out": {"not_in_both": absent, "without_a_scored_sample": unscored},
        "difference": _figures(found, float(per_problem.mean()), pairs),
        "power": _power(found),
        "equivalence": _equivalence(found, margin),
        "mcnemar": _mcnemar(found),
        "truncation": _truncation(pairs, group),
        "warnings": list(_warnings(pairs, group, absent, unscored)),
    }


def _matched(pairs: Pairs) -> bool:
    return all(len(side.samples) == 1 and side.samples[0].binary for pair in pairs for side in pair)


def _side(record: Record, problems: Sequence[Problem], group: NDArray[np.int64] | None) -> dict[str, Any]:
    samples = [sample for problem in problems for sample in problem.samples]
    completed = [sample.correct for sample in samples if not sample.truncated]
    values = {name: np.array([mean_score(p, s) for p in problems]) for name, s in _READINGS.items()}
    return {
        "file": record.where,
        "server": dict(record.server),
        "score": float(values["scored"].mean()),
        "interval": _listed(score_interval(values["scored"], group)),
        "samples": len(samples),
        "errors": sum(problem.errors for problem in problems),
        "truncated": sum(sample.truncated for sample in samples) / len(samples),
        "empty": sum(sample.empty for sample in samples) / len(samples),
        "completed": math.fsum(completed) / len(completed) if completed else None,
        "bounds": [float(values["wrong"].mean()), float(values["right"].mean())],
    }


_READINGS: dict[str, Score] = {"scored": as_scored, "wrong": as_wrong, "right": as_right}


def _figures(found: Difference | None, mean: float, pairs: Pairs) -> dict[str, Any]:
    """``within``: error from the answers to each problem alone, as if the same problems were run again; ``between``: the rest."""
    figures: dict[str, Any] = {"mean": mean, "se": None, "interval": None, "tost_interval": None, "excludes_zero": None}
    within = _within(pairs)
    figures |= {"within": within, "between": None, "method": None}
    if found is None:
        return figures
    low, high = found.interval()
    between = None if within is None else math.sqrt(max(found.se**2 - within**2, 0.0))
    method = "paired t over problems, one more differing" if found.gained is None else "score interval of matched pairs"
    return figures | {
        "se": found.se,
        "interval": [low, high],
        "tost_interval": list(found.interval(TOST_LEVEL)),
        "excludes_zero": not low <= 0 <= high,
        "between": between,
        "method": method + (", far end by skewness" if found.skew else ""),
    }


def _within(pairs: Pairs) -> float | None:
    """Standard error of the mean difference from the spread of answers to one problem; None where a side has one answer."""
    if any(len(side.samples) < 2 for pair in pairs for side in pair):
        return None
    variances = [
        float(np.var([sample.correct for sample in side.samples], ddof=1)) / len(side.samples)
        for pair in pairs
        for side in pair
    ]
    return math.sqrt(math.fsum(variances)) / len(pairs)


def _power(found: Difference | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {"detectable": detectable(found.widened), "margin_in_reach": margin_in_reach(found.widened)}


def _equivalence(found: Difference | None, margin: float | None) -> dict[str, Any]:
    if found is None:
        return {"margin": margin, "shown": None if margin is None else False, "smallest_margin": None}
    least = smallest_margin(found.interval(TOST_LEVEL))
    return {"margin": margin, "shown": None if margin is None else least < margin, "smallest_margin": least}


def _mcnemar(found: Difference | None) -> dict[str, Any] | None:
    if found is None or found.gained is None or found.lost is None:
        return None
    return {"only_a": found.lost, "only_b": found.gained, "p": mcnemar(found.gained, found.lost)}


def _truncation(pairs: Pairs, group: NDArray[np.int64] | None) -> dict[str, Any] | None:
    """The difference with truncated answers wrong in one and right in the other, either way; None without truncation."""
    if not any(sample.truncated for pair in pairs for side in pair for sample in side.samples):
        return None
    lowest, highest = differences(pairs, as_right, as_wrong), differences(pairs, as_wrong, as_right)
    ends = [difference(values, group, matched=_matched(pairs)) for values in (lowest, highest)]
    known = [found.interval() for found in ends if found is not None]
    return {
        "both_wrong": float(differences(pairs, as_wrong, as_wrong).mean()),
        "both_right": float(differences(pairs, as_right, as_right).mean()),
        "bounds": [float(lowest.mean()), float(highest.mean())],
        "interval": [known[0][0], known[1][1]] if len(known) == 2 else None,
    }


def _warnings(pairs: Pairs, group: NDArray[np.int64] | None, absent: int, unscored: int) -> Iterable[str]:
    if absent:
        yield f"left out, as one run lacks them: {absent:,} of the problems; the rest may be easier or harder"
    if unscored:
        yield f"left out, without a scored sample on one side: {unscored:,} of the problems"
    count, unit = (len(pairs), "problems") if group is None else (int(group.max()) + 1, "clusters")
    if count == 1:
        yield f"one {unit[:-1]}: no interval, because the spread between {unit} cannot be seen"
    elif count < FEW:
        yield f"{count} {unit}: intervals from fewer than {FEW} rest on little"
    rates = [
        sum(s.truncated for p in side for s in p.samples) / sum(len(p.samples) for p in side)
        for side in zip(*pairs, strict=True)
    ]
    if max(rates) > 0.01:
        yield f"{rates[0]:.1%} and {rates[1]:.1%} of the answers were cut off: the token budget is part of the score"
    differing = sum(mean_score(one, as_scored) != mean_score(other, as_scored) for one, other in pairs)
    if differing < 10 and count > 1:
        yield f"only {differing} of {len(pairs):,} problems came out differently: the interval is wide to be safe"


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)
