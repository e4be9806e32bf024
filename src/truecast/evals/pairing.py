"""Which problems of two runs can be compared, and how an answer counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.errors import InputError
from truecast.evals.record import Problem, Record, Sample

F64 = NDArray[np.float64]
Score = Callable[[Sample], float]
Pairs = Sequence[tuple[Problem, Problem]]

_SHOWN = 5


def check_same(a: Record, b: Record) -> None:
    """Raises: InputError where the tasks differ, or settings, which are named."""
    both = f"{a.where} and {b.where}"
    if a.task != b.task:
        raise InputError(
            f"the tasks differ: {_told(a.task)} against {_told(b.task)}", where=both, fix="run one task twice"
        )
    keys = sorted(k for k in a.settings.keys() | b.settings.keys() if a.settings.get(k) != b.settings.get(k))
    if keys:
        apart = "; ".join(f"{k}: {_told(a.settings.get(k))} against {_told(b.settings.get(k))}" for k in keys[:_SHOWN])
        raise InputError(f"the settings differ: {apart}", where=both, fix="run both with the same settings")


def paired(a: Record, b: Record, common: bool) -> tuple[Pairs, int, int]:
    """Problems scored on both sides; how many one side lacks, and how many have no scored sample on one side.

    Raises: InputError where problems or clusters differ, or nothing is left.
    """
    absent = sorted(a.problems.keys() ^ b.problems.keys())
    if absent and not common:
        raise InputError(
            f"problems that one of them lacks: {len(absent):,}, such as {', '.join(map(repr, absent[:_SHOWN]))}",
            where=f"{a.where} and {b.where}",
            fix=f"finish both runs, or compare the {len(a.problems.keys() & b.problems.keys()):,} that both have with --common",
        )
    shared = [(problem, b.problems[name]) for name, problem in a.problems.items() if name in b.problems]
    for one, other in shared:
        if one.cluster != other.cluster:
            raise InputError(f"the clusters of problem {one.id!r} differ", where=f"{a.where} and {b.where}")
    pairs = [(one, other) for one, other in shared if one.samples and other.samples]
    if not pairs:
        raise InputError("no problem was scored in both", where=f"{a.where} and {b.where}", fix="run the eval again")
    return pairs, len(absent), len(shared) - len(pairs)


def groups(pairs: Pairs) -> NDArray[np.int64] | None:
    """Index of each pair's cluster ``[n]``; None where each problem stands by itself."""
    names = [one.cluster for one, _ in pairs]
    if None in names or len(set(names)) == len(names):
        return None
    index: dict[str | None, int] = {}
    return np.array([index.setdefault(name, len(index)) for name in names])


def as_scored(sample: Sample) -> float:
    """The score as the task gives it."""
    return sample.correct


def as_wrong(sample: Sample) -> float:
    """An answer that was cut off counts as wrong."""
    return 0.0 if sample.truncated else sample.correct


def as_right(sample: Sample) -> float:
    """An answer that was cut off counts as right."""
    return 1.0 if sample.truncated else sample.correct


def mean_score(problem: Problem, score: Score) -> float:
    """Mean over the scored answers to one problem."""
    return math.fsum(map(score, problem.samples)) / len(problem.samples)


def differences(pairs: Pairs, a: Score, b: Score) -> F64:
    """B's mean less A's for each problem ``[n]``, each side read in its own way."""
    return np.array([mean_score(other, b) - mean_score(one, a) for one, other in pairs])


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
