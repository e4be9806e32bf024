"""How often the intervals of `truecast audit --server` hold the true divergence.

    python -m benchmarks.served_coverage [--replications N] [--json FILE]

A bank of ``KINDS`` kinds of documents with ``CONTEXTS`` next-token distributions each, over ``VOCABULARY`` tokens. The
reference's logits are normal, of a standard deviation drawn for each distribution (1.5 to 6: from open to sure). The
candidate adds normal noise of a scale drawn for each kind (lognormal), so that documents, not tokens, differ in KL; the
native server adds noise of its own, ``floor`` times as large. A corpus is G documents of unequal length, of kinds drawn at
random; each position takes one of its kind's distributions and draws its token from the reference. Each side tells its
``TOP`` most probable tokens and the drawn one. The exact divergence of the bank is the truth.

Worlds: two sizes of noise; and one where half of the kinds are sure of each token (deviation 12 to 20) and cost almost
nothing. Columns, in percent of corpora, 95 is wanted:

``estimate``, ``log_ratio``  intervals that hold the divergence; ``..._jackknife``: those that know nothing of skew
``lower``                    intervals of the lower bound that hold its own mean
``below``, ``above``         the lower bound's interval begins below the divergence, the upper bound's ends above it (97.5)
``over``                     upper bounds, as such, not below the divergence of the positions drawn
``excess_...``               intervals of the excess over the floor; that of the lower bound: its own mean
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.interval_coverage import TOKENS, lengths
from truecast.audit.served_estimators import ROUNDING, SEEN_TAIL, Estimates, estimates, upper
from truecast.statistics.clusters import Clusters
from truecast.statistics.intervals import Pair, excess_interval, positive_interval, signed_interval, sum_interval

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
VOCABULARY = 2000
TOP = 20
KINDS = 300
CONTEXTS = 12
DOCUMENTS = (10, 30, 100)
AT_ONCE = 100_000
"""Positions drawn at once: bounds memory."""


@dataclass(frozen=True, slots=True)
class World:
    """``noise``: median scale of the candidate's noise, in nats. ``sure``: share of kinds that cost almost nothing."""

    noise: float
    sure: float = 0.0
    unlike: float = 0.5
    floor: float = 0.4


@dataclass(frozen=True, slots=True)
class Side:
    """A server against the reference, over the bank's ``B`` distributions: ``exact`` divergence, the log ratio of each
    token and whether it is among the known ones ``[B, VOCABULARY]``, and what does not depend on the token drawn."""

    exact: F64
    ratio: NDArray[np.float32]
    inside: NDArray[np.bool_]
    known: Estimates
    tails: F64


@dataclass(frozen=True, slots=True)
class Bank:
    """``cumulative [B * VOCABULARY]``: the reference's distribution functions, one above the other."""

    cumulative: F64
    candidate: Side
    native: Side


def bank(world: World, seed: int) -> Bank:
    """All kinds of documents, each ``CONTEXTS`` rows."""
    rng = np.random.default_rng(seed)
    many = KINDS * CONTEXTS
    sure = np.repeat(rng.random(KINDS) < world.sure, CONTEXTS)
    deviation = np.where(sure, rng.uniform(12, 20, many), rng.uniform(1.5, 6, many))
    scale = np.repeat(world.noise * np.exp(world.unlike * rng.standard_normal(KINDS)), CONTEXTS)
    z = deviation[:, None] * rng.standard_normal((many, VOCABULARY))
    p = _log_softmax(z)
    sides = [
        _side(p, _log_softmax(z + (times * scale)[:, None] * rng.standard_normal(z.shape)))
        for times in (1.0, world.floor)
    ]
    sums = np.exp(p).cumsum(1)
    cumulative = sums / sums[:, -1:] + np.arange(many)[:, None]
    return Bank(cumulative.ravel(), *sides)


def _log_softmax(z: F64) -> F64:
    top = z.max(1, keepdims=True)
    found: F64 = z - top - np.log(np.exp(z - top).sum(1, keepdims=True))
    return found


def _side(p: F64, q: F64) -> Side:
    best = np.argpartition(-q, TOP, axis=1)[:, :TOP]
    theirs = np.zeros(p.shape, bool)
    np.put_along_axis(theirs, np.argpartition(-p, TOP, axis=1)[:, :TOP], True, axis=1)
    both = np.take_along_axis(theirs, best, 1)
    inside = np.zeros(p.shape, bool)
    np.put_along_axis(inside, best, both, axis=1)
    of_both = [np.where(both, np.take_along_axis(x, best, 1), -np.inf) for x in (p, q)]
    nothing = np.zeros(len(p))
    known = estimates(of_both[0], of_both[1], nothing, nothing, np.ones(len(p), bool))
    other = np.maximum(1 - np.exp(of_both[1]).sum(1), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        tails = np.log(known.tail / other)
    exact = (np.exp(p) * (p - q)).sum(1)
    return Side(exact, (p - q).astype(np.float32), inside, known, tails)


def drawn(side: Side, row: I64, token: I64) -> Estimates:
    """What the audit makes of the tokens that follow, at rows of the bank."""
    known, inside = side.known, side.inside[row, token]
    ratio = side.ratio[row, token].astype(np.float64)
    tail = known.tail[row]
    looked = ~inside & (tail >= SEEN_TAIL) & np.isfinite(side.tails[row])
    return Estimates(
        log_ratio=ratio,
        estimate=known.estimate[row] + np.where(inside, 0.0, ratio),
        lower=known.lower[row],
        tail=tail,
        inside=inside,
        spread=np.where(looked, np.abs(ratio - side.tails[row]), np.nan),
    )


def corpora(found: Bank, documents: int, count: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Of ``count`` corpora: sums by document of each figure (``floor_`` before the native server's) and ``tokens``
    ``[documents]``, the largest ``spread`` seen (NaN without any), and ``exact``, the mean divergence of the positions."""
    step = max(1, AT_ONCE // (documents * TOKENS))
    for start in range(0, count, step):
        many = min(step, count - start)
        n = lengths(rng.standard_normal(many * documents))
        row = np.repeat(rng.integers(0, KINDS, len(n)) * CONTEXTS, n) + rng.integers(0, CONTEXTS, n.sum())
        at = np.searchsorted(found.cumulative, row + rng.random(len(row)), side="right")
        token = np.clip(at - row * VOCABULARY, 0, VOCABULARY - 1)
        starts = np.cumsum(n) - n
        sums = {"tokens": n.astype(np.float64), "exact": np.add.reduceat(found.candidate.exact[row], starts)}
        for before, side in (("", found.candidate), ("floor_", found.native)):
            each = drawn(side, row, token)
            for name in ("estimate", "log_ratio", "lower"):
                sums[before + name] = np.add.reduceat(getattr(each, name), starts)
            if not before:
                sums["room"] = np.add.reduceat(np.minimum(each.tail + ROUNDING, 1.0), starts)
                seen = np.fmax.reduceat(each.spread, starts[::documents])
        for i in range(many):
            one: dict[str, Any] = {k: v[i * documents : (i + 1) * documents] for k, v in sums.items()}
            yield one | {"spread": float(seen[i])}


def coverage(world: World, documents: int, count: int, seed: int) -> dict[str, float]:
    """Percent of corpora; the columns of the module's text. ``kl``: the true divergence, in nats."""
    found = bank(world, seed)
    side, other = found.candidate, found.native
    kl, floor = float(side.exact.mean()), float(other.exact.mean())
    low, floor_low = float(side.known.lower.mean()), float(other.known.lower.mean())
    hits: dict[str, list[bool]] = {}
    for corpus in corpora(found, documents, count, np.random.default_rng(seed + 1)):
        for name, value in _hits(corpus, kl, kl - floor, low, low - floor_low).items():
            hits.setdefault(name, []).append(value)
    return {"kl": kl, "known": 1 - float(side.known.tail.mean())} | {
        name: 100 * float(np.mean(values)) for name, values in hits.items()
    }


def _hits(corpus: dict[str, Any], kl: float, excess: float, low: float, excess_lower: float) -> dict[str, bool]:
    tokens = corpus["tokens"]

    def of(sums: F64) -> Clusters:
        return Clusters(tokens, sums, 0.0)

    ours, theirs = corpus["lower"], corpus["floor_lower"]
    lower, part = of(ours), of(ours - theirs)
    least, known = positive_interval(lower), excess_interval(lower, of(theirs))
    hits = {"lower": _in(least, low), "below": least[0] <= kl, "excess_lower": _in(known, excess_lower)}
    for name in ("estimate", "log_ratio"):
        values, less = corpus[name], corpus[name] - corpus["floor_" + name]
        hits[name] = _in(sum_interval(lower, least, of(values - ours)), kl)
        hits[name + "_jackknife"] = _in(signed_interval(of(values)), kl)
        hits["excess_" + name] = _in(sum_interval(part, known, of(less - (ours - theirs))), excess)
    if np.isfinite(corpus["spread"]):
        most = of(corpus["lower"] + corpus["room"] * float(upper(np.zeros(1), np.ones(1), corpus["spread"])[0]))
        hits["above"] = positive_interval(most)[1] >= kl
        hits["over"] = most.mean >= float(corpus["exact"].sum() / tokens.sum())
    return hits


def _in(interval: Pair, truth: float) -> bool:
    return interval[0] <= truth <= interval[1]


WORLDS = (World(0.1), World(0.3), World(0.1, unlike=0.8), World(0.1, sure=0.5))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for world in WORLDS:
        for documents in DOCUMENTS:
            found = coverage(world, documents, args.replications, 1)
            rows.append({**asdict(world), "documents": documents, **found})
            print("  ".join(f"{k} {v:.4g}" for k, v in rows[-1].items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"replications": args.replications, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
