"""How often the intervals of `truecast compare` hold the true difference of two evals, and how often TOST errs.

    python -m benchmarks.eval_coverage [--replications N] [--json FILE]

An eval: n problems, k answers to each on both sides. A problem's chance to be answered rightly is drawn from a beta law
(``accuracy`` its mean, ``spread`` the sum of its two parameters: below 1 most problems are always or never solved). The
candidate has the same chance, or with probability ``apart`` one drawn anew (it is better at some problems and worse at
others), times 1 - loss / accuracy, so that it is worse by ``loss`` on average. An answer is cut off with probability
``cut`` (1 - chance): longer on harder problems. In ``clusters`` of 5, problems share their chances.

Columns, in percent of replications: ``covered``, 95% intervals that hold the true difference (95 is wanted);
``false``, equivalence shown within +-loss, at the very edge of the margin (at most 5); ``score``, the interval of the
reference's own score; ``bounds``, the interval with truncated answers right and wrong that holds the difference there
would be without a token budget (at least 95).
``one-sided``: the candidate fails a share of the problems outright and gains none, or only the share ``gained``; the
hardest case for the error bar.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.statistics.equivalence import TOST_LEVEL, smallest_margin
from truecast.statistics.problems import difference, score_interval

F64 = NDArray[np.float64]
PER_CLUSTER = 5


@dataclass(frozen=True, slots=True)
class World:
    """A task and two servers; see the module's text. ``loss`` is the true difference without a token budget."""

    problems: int
    answers: int
    loss: float = 0.0
    accuracy: float = 0.8
    spread: float = 1.25
    apart: float = 0.2
    cut: float = 0.0
    clustered: bool = False
    one_sided: bool = False
    gained: float = 0.0

    def chances(self, rng: np.random.Generator, count: int) -> tuple[F64, F64]:
        """Chance of a right answer ``[count, problems]`` on either side, without a token budget."""
        each = PER_CLUSTER if self.clustered else 1
        shape = (count, self.problems // each)
        a = rng.beta(self.accuracy * self.spread, (1 - self.accuracy) * self.spread, shape)
        if self.one_sided:
            at = rng.random(shape)
            a, b = (right.astype(np.float64) for right in (at < 1 - self.gained, at >= self.loss + self.gained))
            return np.repeat(a, each, axis=1), np.repeat(b, each, axis=1)
        anew = rng.beta(self.accuracy * self.spread, (1 - self.accuracy) * self.spread, shape)
        b = np.where(rng.random(shape) < self.apart, anew, a) * (1 - self.loss / self.accuracy)
        return np.repeat(a, each, axis=1), np.repeat(b, each, axis=1)

    def truth(self) -> tuple[float, float]:
        """Mean score of A, and mean of B less A, as scored: answers cut off are wrong."""
        if self.one_sided:
            return 1 - self.gained, -self.loss
        mean, kept = self.accuracy, 1 - self.loss / self.accuracy
        square = mean * (mean * self.spread + 1) / (self.spread + 1)
        a = (1 - self.cut) * mean + self.cut * square
        return a, (1 - self.cut) * kept * mean + self.cut * kept * kept * square - a


def answers(world: World, chance: F64, rng: np.random.Generator) -> tuple[F64, F64]:
    """Mean score of each problem ``[count, problems]``, truncated answers wrong, and what it is with them right."""
    cut = rng.binomial(world.answers, world.cut * (1 - chance))
    right = rng.binomial(world.answers - cut, chance)
    return right / world.answers, (right + cut) / world.answers


def measure(world: World, count: int, seed: int) -> dict[str, float]:
    """Percent of ``count`` evals in which each statement held."""
    rng = np.random.default_rng(seed)
    chances = world.chances(rng, count)
    (a, a_right), (b, b_right) = (answers(world, chance, rng) for chance in chances)
    group = np.arange(world.problems) // PER_CLUSTER if world.clustered else None
    score, truth = world.truth()
    hits = dict.fromkeys(("covered", "false", "score", "bounds"), 0)
    for row in range(count):
        found = difference(b[row] - a[row], group, matched=world.answers == 1)
        ends, own = found.interval(), score_interval(a[row], group)
        hits["covered"] += ends[0] <= truth <= ends[1]
        if world.loss:
            hits["false"] += smallest_margin(found.interval(TOST_LEVEL)) < -truth
        hits["score"] += own[0] <= score <= own[1]
        if world.cut:
            low = difference(b[row] - a_right[row], group, matched=world.answers == 1).interval()[0]
            high = difference(b_right[row] - a[row], group, matched=world.answers == 1).interval()[1]
            hits["bounds"] += low <= -world.loss <= high
    shares = {name: 100 * hit / count for name, hit in hits.items()}
    if not world.loss:
        del shares["false"]
    if not world.cut:
        del shares["bounds"]
    return shares


def worlds() -> Iterator[World]:
    """The cells of the table."""
    for n, k, loss in itertools.product((30, 100, 198), (1, 4, 8), (0.0, 0.03, 0.1)):
        for accuracy, spread in ((0.8, 1.25), (0.8, 5.0), (0.9, 2.0), (0.5, 1.0)):
            yield World(n, k, loss, accuracy, spread)
        yield World(n, k, loss, cut=0.2)
    for n, k, loss in itertools.product((100, 200), (1, 8), (0.0, 0.1)):
        yield World(n, k, loss, clustered=True)
    for n, k, loss in itertools.product((30, 100, 198), (1, 8), (0.03, 0.1)):
        yield World(n, k, loss, one_sided=True)
    for n, k, loss in itertools.product((198, 500), (1, 8), (0.03, 0.1)):
        yield World(n, k, loss, one_sided=True, gained=0.005)
    for k, loss in itertools.product((1, 8), (0.03, 0.1)):
        yield World(500, k, loss, one_sided=True)
        yield World(500, k, loss, one_sided=True, clustered=True)


def main() -> None:
    """Print the table and its extremes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began, rows = time.monotonic(), list[dict[str, Any]]()
    for seed, world in enumerate(worlds()):
        rows.append({**asdict(world), **measure(world, args.replications, seed)})
        print("  ".join(f"{k} {v:.1f}" if k in SHARES else f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    for name, kind in itertools.product(SHARES, ("plain", "clustered", "one_sided")):
        values = [r[name] for r in rows if name in r and kind == _kind(r)]
        if values:
            print(f"{kind:10} {name:8} {min(values):5.1f} to {max(values):5.1f} in {len(values)} cells")
    print(f"{args.replications:,} replications a cell, {time.monotonic() - began:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


SHARES = ("covered", "false", "score", "bounds")


def _kind(row: dict[str, Any]) -> str:
    return next((kind for kind in ("clustered", "one_sided") if row[kind]), "plain")


if __name__ == "__main__":
    main()
