"""How often the audit's 95% intervals hold the true mean, on simulated corpora.

    python -m benchmarks.interval_coverage [--replications N] [--json FILE]

A corpus: G documents of unequal length (lognormal, log-sd 0.6, mean ``TOKENS``, at least 8). A token's KL is
exp(s (sqrt(r) u + sqrt(1 - r) e)), u one normal draw a document, e one a token: lognormal with total log-sd s, intraclass
correlation r of log KL. ``lengths`` correlates u with the log of the document's length, so that longer documents are
dearer or cheaper. Two more worlds break the log scale's model: documents' factors from a gamma law of the same variance
(r = 0.5, s = 1), and one document in ten five times as dear. ``cheap``: a share of the documents, such as tool calls that
the model is sure of, whose KL is 1e-3 to 1e-9 of the others' (log-uniform), of the same lengths or (``brief``) a quarter as
long. The true token-weighted mean is E[n x] / E[n].
Differences: the KL of a second candidate on the same tokens (correlation 0.9 with the first, of equal mean or 1.2 times
it), and the excess over a floor (correlation 0.7 or 0.95; 0.1, 0.5 or 0.95 times the KL). Cheap documents are cheap in both.
The bootstrap is slow: it is measured on the first quarter of the corpora.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.statistics.bootstrap import bca_interval
from truecast.statistics.clusters import Clusters, cr1_error
from truecast.statistics.intervals import excess_interval, positive_interval, ratio_interval, signed_interval
from truecast.statistics.student import t_quantile

F64 = NDArray[np.float64]
TOKENS = 60
SHORTEST = 8
LENGTH_SD = 0.6
CHEAP = (-9.0, -3.0)
"""Powers of ten between which a cheap document's factor lies."""
CHEAP_MEAN = (10 ** CHEAP[1] - 10 ** CHEAP[0]) / (math.log(10) * (CHEAP[1] - CHEAP[0]))
BRIEF = 0.25
DOCUMENTS = (5, 10, 20, 30, 100)
CORRELATIONS = (0.1, 0.3, 0.5)


@dataclass(frozen=True, slots=True)
class World:
    """A law of KL. ``spread``: log-sd s. ``intraclass``: r. ``law``: lognormal, gamma or outliers; see the module's text."""

    spread: float = 1.0
    intraclass: float = 0.3
    lengths: float = 0.0
    law: str = "lognormal"
    cheap: float = 0.0
    brief: bool = False

    @property
    def between(self) -> float:
        """Log-sd of the documents' factors."""
        return math.sqrt(self.intraclass) * self.spread

    @property
    def within(self) -> float:
        """Log-sd of tokens inside a document."""
        return math.sqrt(1 - self.intraclass) * self.spread

    def documents(self, rng: np.random.Generator, count: int) -> tuple[F64, NDArray[np.bool_], NDArray[np.int64]]:
        """The normal draw behind each document's length, whether it is cheap, and its tokens."""
        v = rng.standard_normal(count)
        cheap = rng.random(count) < self.cheap if self.cheap else np.zeros(count, bool)
        return v, cheap, lengths(v, np.where(cheap & self.brief, BRIEF, 1.0))

    def factors(self, rng: np.random.Generator, v: F64) -> F64:
        """One factor a document; ``v`` is the normal draw behind its length."""
        if self.law == "gamma":
            shape = 1 / math.expm1(self.between**2)
            return rng.gamma(shape, 1 / shape, v.shape)
        if self.law == "outliers":
            return np.where(rng.random(v.shape) < 0.1, 5.0, 1.0) * np.exp(0.3 * rng.standard_normal(v.shape))
        u = self.lengths * v + math.sqrt(1 - self.lengths**2) * rng.standard_normal(v.shape)
        return np.exp(self.between * u)

    def truth(self) -> float:
        """E[n x] / E[n], by a long draw where lengths and KL are correlated, or cheap documents are brief."""
        dear, cheap = 1 - self.cheap, self.cheap
        if self.brief:
            v = np.random.default_rng(0).standard_normal(1_000_000)
            cheap *= float(lengths(v, BRIEF).mean() / lengths(v).mean())
        return self._dear() * (dear + cheap * CHEAP_MEAN) / (dear + cheap)

    def _dear(self) -> float:
        """The same without cheap documents."""
        within = math.exp(self.within**2 / 2)
        if self.law == "gamma":
            return within
        if self.law == "outliers":
            return (0.1 * 5 + 0.9) * math.exp(0.3**2 / 2) * within
        between = math.exp(self.between**2 * (1 - self.lengths**2) / 2)
        v = np.random.default_rng(0).standard_normal(1_000_000)
        n = lengths(v)
        return float((n * np.exp(self.between * self.lengths * v)).sum() / n.sum()) * between * within


def lengths(v: F64, times: F64 | float = 1.0) -> NDArray[np.int64]:
    """Tokens of documents from normal draws, ``times`` as long as usual."""
    return np.maximum(SHORTEST, np.rint(times * TOKENS * np.exp(LENGTH_SD * v - LENGTH_SD**2 / 2))).astype(np.int64)


def depths(rng: np.random.Generator, cheap: NDArray[np.bool_]) -> F64:
    """What a document's KL is multiplied by: 1e-9 to 1e-3, log-uniform, if it is cheap. Shape as ``cheap``."""
    return np.where(cheap, 10 ** rng.uniform(*CHEAP, cheap.shape), 1.0) if cheap.any() else np.ones(cheap.shape)


def corpora(world: World, documents: int, count: int, seed: int) -> Iterator[Clusters]:
    """Per-document sums of ``count`` corpora."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        v, cheap, n = world.documents(rng, documents)
        tokens = np.exp(world.within * rng.standard_normal(int(n.sum())))
        sums = np.add.reduceat(tokens, np.r_[0, np.cumsum(n)[:-1]]) * world.factors(rng, v) * depths(rng, cheap)
        yield Clusters(n.astype(np.float64), sums, 0.0)


def pairs(
    world: World, documents: int, count: int, seed: int, ratio: float, alike: float
) -> Iterator[tuple[Clusters, Clusters]]:
    """Two figures on the same tokens, lognormal; the second's mean is ``ratio`` times the first's."""
    rng = np.random.default_rng(seed)
    apart = math.sqrt(1 - alike**2)
    for _ in range(count):
        _, cheap, n = world.documents(rng, documents)
        starts = np.r_[0, np.cumsum(n)[:-1]]
        u, e = rng.standard_normal((2, documents)), rng.standard_normal((2, int(n.sum())))
        u[1], e[1] = alike * u[0] + apart * u[1], alike * e[0] + apart * e[1]
        sums = np.add.reduceat(np.exp(world.within * e), starts, axis=1) * np.exp(world.between * u)
        sums *= depths(rng, np.stack([cheap, cheap]))
        yield Clusters(n.astype(np.float64), sums[0], 0.0), Clusters(n.astype(np.float64), ratio * sums[1], 0.0)


def textbook(clusters: Clusters) -> tuple[float, float]:
    """mean +- t_{G-1} CR1."""
    reach = t_quantile(0.975, clusters.count - 1) * cr1_error(clusters)
    return clusters.mean - reach, clusters.mean + reach


def covered(intervals: Iterable[tuple[float, float]], truth: float) -> float:
    """Percent of intervals that hold the truth."""
    hits = [low <= truth <= high for low, high in intervals]
    return 100 * sum(hits) / len(hits)


def mean_coverage(world: World, documents: int, count: int, seed: int, bootstrap: bool) -> dict[str, float]:
    """Coverage of each interval of the mean KL, in percent, all on the same corpora.

    ``upper``: median of the upper end of ``interval`` over the mean.
    """
    drawn = list(corpora(world, documents, count, seed))
    truth, ends = world.truth(), [positive_interval(c) for c in drawn]
    upper = float(np.median([high / c.mean for (_, high), c in zip(ends, drawn, strict=True)]))
    found = {"interval": covered(ends, truth), "upper": upper, "cr1": covered(map(textbook, drawn), truth)}
    return found | ({"bca": covered(map(bca_interval, drawn[: count // 4]), truth)} if bootstrap else {})


def difference_coverage(
    world: World, documents: int, count: int, seed: int, ratio: float, alike: float
) -> dict[str, float]:
    """Coverage of the intervals of a difference: the textbook's, the paired one, the excess, and the ratio."""
    drawn = list(pairs(world, documents, count, seed, ratio, alike))
    less = [Clusters(a.tokens, a.sums - b.sums, 0.0) for a, b in drawn]
    truth = (1 - ratio) * world.truth()
    return {
        "cr1": covered(map(textbook, less), truth),
        "paired": covered(map(signed_interval, less), truth),
        "excess": covered((excess_interval(a, b) for a, b in drawn), truth),
        "ratio": covered((ratio_interval(b, a) or (0.0, 0.0) for a, b in drawn), ratio),
    }


MEANS = [World(s, r, c) for s in (1.0, 1.5) for c in (0.0, -0.4, 0.4) for r in CORRELATIONS] + [
    World(1.0, 0.5, law="gamma"),
    World(1.0, 0.3, law="outliers"),
]
MIXED = [
    World(s, r, cheap=share, brief=brief)
    for brief in (False, True)
    for share in (0.1, 0.5, 0.8)
    for s, r in ((1.0, 0.1), (1.0, 0.5), (1.5, 0.5))
]
DIFFERENCES = [World(s, r) for s in (1.0, 1.5) for r in CORRELATIONS] + [
    World(s, 0.5, cheap=share) for share in (0.1, 0.5, 0.8) for s in (1.0, 1.5)
]


PAIRS = ((1.0, 0.9), (1.2, 0.9), (0.1, 0.7), (0.5, 0.7), (0.95, 0.7), (0.1, 0.95), (0.5, 0.95))
"""Second mean over the first, and their correlation."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for world in MEANS + MIXED:
        for documents in DOCUMENTS:
            found = mean_coverage(world, documents, args.replications, 1, bootstrap=not world.cheap)
            rows.append({"figure": "mean", **asdict(world), "documents": documents, **found})
            _say(rows[-1])
    for ratio, alike in PAIRS:
        for world in DIFFERENCES:
            for documents in DOCUMENTS:
                found = difference_coverage(world, documents, args.replications, 2, ratio, alike)
                figure = {"figure": "difference", "times": ratio, "alike": alike}
                rows.append({**figure, **asdict(world), "documents": documents, **found})
                _say(rows[-1])
    if args.json:
        args.json.write_text(json.dumps({"replications": args.replications, "rows": rows}, indent=1) + "\n")


def _say(row: dict[str, Any]) -> None:
    print(
        "  ".join(
            f"{key} {value:5.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
