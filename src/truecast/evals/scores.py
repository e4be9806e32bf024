"""What a run's answers say: the score with its error, and what truncation, empty answers and errors may hide.

The unit of sampling is the problem (or the cluster of problems drawn together), never the answer: a problem's mean over its
answers is one observation. Pooling k answers as independent would make the error up to sqrt(k) too small. Source: Miller,
arXiv 2411.00640, 2024; :mod:`truecast.statistics.problems` for the interval.

Everything here is computed from the record alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.statistics.clusters import Clusters, by_document, cr1_error
from truecast.statistics.intervals import signed_interval
from truecast.statistics.problems import score_interval

FEW = 30
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
Problem = Mapping[str, Any]
Sample = Mapping[str, Any]


def scores(problems: Sequence[Problem], max_tokens: int) -> dict[str, Any]:
    """Figures of ``truecast.eval/1``'s problems; shares from 0 to 1, None where nothing was scored.

    ``score`` is the mean over problems of the mean over answers. ``bounds`` are the same with every truncated answer wrong,
    and right. ``completed`` is the share of right ones among the answers that were not truncated.
    """
    scored = [(p, kept) for p in problems if (kept := [s for s in p["samples"] if s["error"] is None])]
    answers = [sample for _, kept in scored for sample in kept]
    asked = sum(len(p["samples"]) for p in problems)
    errors = asked - len(answers)
    counts = {"problems": len(problems), "scored_problems": len(scored), "asked": asked, "answers": len(answers)}
    found: dict[str, Any] = {**counts, "errors": errors, "unit": "problem", "clusters": None, "score": None, "se": None}
    found |= {"interval": None, "per_seed": [], "truncated": None, "completed": None, "bounds": None, "empty": None}
    found |= {"tokens": None, "measures": {}, "warnings": []}
    if answers:
        found |= _figures(scored, answers, max_tokens)
    found["warnings"] = list(_warnings(found, max_tokens))
    return found


def _figures(
    scored: Sequence[tuple[Problem, Sequence[Sample]]], answers: Sequence[Sample], max_tokens: int
) -> dict[str, Any]:
    group = _groups([p for p, _ in scored])
    values = _means(scored, lambda s: float(s["correct"]))
    whole = [s for s in answers if not s["truncated"]]
    wrong = _means(scored, lambda s: 0.0 if s["truncated"] else float(s["correct"]))
    right = _means(scored, lambda s: 1.0 if s["truncated"] else float(s["correct"]))
    clusters = _clusters(values, group)
    interval = score_interval(values, group)
    return {
        "unit": "problem" if group is None else "cluster",
        "clusters": None if group is None else clusters.count,
        "score": float(values.mean()),
        "se": cr1_error(clusters) if clusters.count > 1 else None,
        "interval": None if interval is None else list(interval),
        "per_seed": _per_seed(answers),
        "truncated": _share(answers, "truncated"),
        "completed": math.fsum(float(s["correct"]) for s in whole) / len(whole) if whole else None,
        "bounds": [float(wrong.mean()), float(right.mean())],
        "empty": _share(answers, "empty"),
        "tokens": _tokens(answers, max_tokens),
        "measures": _measures(scored, group),
    }


def _groups(problems: Sequence[Problem]) -> NDArray[np.int64] | None:
    names = [p.get("cluster") for p in problems]
    if None in names or len(set(names)) == len(names):
        return None
    index: dict[str, int] = {}
    return np.array([index.setdefault(str(name), len(index)) for name in names])


def _clusters(values: NDArray[np.float64], group: NDArray[np.int64] | None) -> Clusters:
    return by_document(values, np.arange(len(values)) if group is None else group)


def _means(scored: Sequence[tuple[Problem, Sequence[Sample]]], value: Callable[[Sample], float]) -> NDArray[np.float64]:
    return np.array([math.fsum(map(value, kept)) / len(kept) for _, kept in scored])


def _share(answers: Sequence[Sample], name: str) -> float:
    return sum(bool(s[name]) for s in answers) / len(answers)


def _per_seed(answers: Sequence[Sample]) -> list[dict[str, Any]]:
    """The score of each seed by itself: seed 0 may be sampled otherwise than the rest."""
    seeds = sorted({int(s["seed"]) for s in answers})
    kept = {seed: [s for s in answers if s["seed"] == seed] for seed in seeds}
    return [
        {"seed": n, "answers": len(a), "score": math.fsum(float(s["correct"]) for s in a) / len(a)}
        for n, a in kept.items()
    ]


def _tokens(answers: Sequence[Sample], max_tokens: int) -> dict[str, Any] | None:
    """Output tokens of the longest reply of each answer, which the budget bounds; None where the server does not count."""
    known = np.array([s["most"] for s in answers if s["most"] is not None], dtype=np.float64)
    if not len(known):
        return None
    quantiles = {name: int(np.quantile(known, q, method="higher")) for name, q in QUANTILES.items()}
    total = sum(s["tokens"] for s in answers if s["tokens"] is not None)
    return {"budget": max_tokens, "counted": len(known), "total": total, **quantiles, "max": int(known.max())}


def _measures(
    scored: Sequence[tuple[Problem, Sequence[Sample]]], group: NDArray[np.int64] | None
) -> dict[str, dict[str, Any]]:
    """Other ways to count: of all that there was to get right, how much was; clustered like the score."""
    names = sorted({name for _, kept in scored for s in kept for name in s.get("measures", {})})
    found = {}
    for name in names:
        pairs = np.array([_summed(kept, name) for _, kept in scored], dtype=np.float64)
        index = np.arange(len(pairs)) if group is None else group
        right, of = (np.bincount(index, weights=pairs[:, n]).astype(np.float64) for n in (0, 1))
        clusters = Clusters(of[of > 0], right[of > 0], 0.0)
        several = clusters.count > 1
        low, high = signed_interval(clusters) if several else (0.0, 1.0)
        found[name] = {
            "of": int(of.sum()),
            "score": clusters.mean,
            "se": cr1_error(clusters) if several else None,
            "interval": [max(low, 0.0), min(high, 1.0)] if several else None,
        }
    return found


def _summed(kept: Sequence[Sample], name: str) -> tuple[int, int]:
    pairs = [s["measures"][name] for s in kept if name in s.get("measures", {})]
    return sum(p[0] for p in pairs), sum(p[1] for p in pairs)


def _warnings(found: Mapping[str, Any], max_tokens: int) -> Iterable[str]:
    if found["errors"]:
        yield (
            f"{found['errors']:,} of {found['asked']:,} answers are missing for errors: they are not scored, and if errors "
            "fell on the hard problems the score is too high; the same command asks them again"
        )
    if found["truncated"]:
        low, high = found["bounds"]
        yield (
            f"the token budget of {max_tokens:,} binds: {found['truncated']:.2%} of the answers were cut off, so the score "
            f"lies between {low:.2%} and {high:.2%} had they gone on; raise --max-tokens"
        )
    if found["answers"] and found["tokens"] is None:
        yield "the server reports no usage: how much of the token budget was used is not known"
    if found["answers"] and found["tokens"] and found["tokens"]["counted"] < found["answers"]:
        yield f"{found['answers'] - found['tokens']['counted']:,} answers came without usage and are not in the token figures"
    count = found["clusters"] or found["scored_problems"]
    unit = "clusters" if found["clusters"] else "problems"
    if count == 1:
        yield f"one {unit[:-1]}: no interval, because the spread between {unit} cannot be seen"
    elif 1 < count < FEW:
        yield f"{count} {unit}: intervals from fewer than {FEW} rest on little"
