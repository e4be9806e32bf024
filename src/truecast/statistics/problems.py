"""Means over problems: of a score, and of the difference of two scores on the same problems.

What was drawn at random is the problem (or the group of problems that belong together), not the answer: k answers to one
problem are k looks at it. With d_i the difference of a problem's two mean scores, the error of the mean of d over n problems
is sd(d) / sqrt(n), which holds both parts: that problems differ, and that answers to one problem do. Pooling the n k
answers as independent would leave out the first.

Where few problems differ, sd(d) is itself uncertain. So the interval is that of mean -+ t error, where the squares summed
in ``error`` get one more, of the mean size of those that differ. Where each side has one right-or-wrong answer a problem,
it is Tango's instead. Where no problem differs at all it is exact: up to what share of problems could be lost, or gained,
outright and none of n show it? 1 - (alpha / 2)^(1/n).

Where most that differ differ one way (rare losses), mean and error rise together: by chance few losses, and the error is
small too. There the end on the side of the skewness is not nearer than mean -+ (t + (1 + 2 t^2) |skewness| / (6 sqrt(n)))
error, the first term of t's Edgeworth expansion. Elsewhere a sample's skewness is mostly noise, which would only lengthen
the interval.
benchmarks/eval_coverage.py measures all four.
Sources: Miller, arXiv 2411.00640, 2024; Johnson, J. American Statistical Association 73, 1978, 536-544 (skewness); clusters
as in :mod:`truecast.statistics.clusters`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from truecast.statistics.clusters import F64, Clusters
from truecast.statistics.equivalence import Estimate
from truecast.statistics.matched import matched_interval
from truecast.statistics.student import t_quantile

_ONE_WAY = 3
"""At least this many times as many problems differ one way as the other: the least at which skewness is corrected for."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of d over problems. ``se``: plain clustered error. ``widened``: what intervals and power go by.

    ``groups``: problems, or groups of them, of which ``differing`` came out differently.
    ``skew``: skewness of d over sqrt(groups), where most that differ differ one way; else 0.
    ``gained`` and ``lost``: where each d is -1, 0 or 1 and stands by itself, how many are 1 and -1; else None.
    """

    se: float
    widened: Estimate
    groups: int
    differing: int
    skew: float = 0.0
    gained: int | None = None
    lost: int | None = None

    @property
    def mean(self) -> float:
        """Mean difference."""
        return self.widened.mean

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Interval of the mean difference, within [-1, 1]."""
        if not self.differing:
            reach = 1 - ((1 - level) / 2) ** (1 / self.groups)
            return -reach, reach
        if self.gained is not None and self.lost is not None:
            low, high = matched_interval(self.gained, self.lost, self.groups, level)
        else:
            low, high = self.widened.interval(level)
        t = t_quantile((1 + level) / 2, self.widened.degrees)
        reach = (t + (1 + 2 * t * t) * abs(self.skew) / 6) * self.widened.error
        if self.skew < 0:
            low = min(low, self.mean - reach)
        elif self.skew > 0:
            high = max(high, self.mean + reach)
        return max(low, -1.0), min(high, 1.0)


def difference(values: F64, group: NDArray[np.integer] | None = None, *, matched: bool = False) -> Difference | None:
    """Mean of the differences ``values [n]``, each in [-1, 1]; None where one group alone shows no spread.

    ``group [n]``: index of what was drawn together; None: each problem by itself. ``matched``: each value is of one
    right-or-wrong answer a side (then without groups Tango's interval is used).
    """
    clusters = _grouped(values, group)
    if clusters.count < 2:
        return None
    mean, scale = clusters.mean, clusters.count / clusters.tokens.sum()
    per_group = clusters.sums * scale
    apart = per_group - mean * scale * clusters.tokens
    squares = float(apart @ apart)
    differing = per_group[per_group != 0]
    one_more = float(differing @ differing) / len(differing) if len(differing) else 1.0
    pairs = clusters.count * (clusters.count - 1)
    widened = Estimate(mean, math.sqrt((squares + one_more) / pairs), clusters.count - 1)
    counts = (int((values > 0).sum()), int((values < 0).sum())) if matched and group is None else (None, None)
    skew = _skew(apart, differing) if squares > 1e-12 * one_more else 0.0  # all equal but for rounding
    return Difference(math.sqrt(squares / pairs), widened, clusters.count, len(differing), skew, *counts)


def _skew(apart: F64, differing: F64) -> float:
    """Skewness of the deviations ``apart [n]`` over sqrt(n); 0 unless most of ``differing`` have one sign."""
    up = int((differing > 0).sum())
    fewer, more = sorted((up, len(differing) - up))
    return float((apart**3).sum() / (apart @ apart) ** 1.5) if more >= _ONE_WAY * fewer else 0.0


def score_interval(
    values: F64, group: NDArray[np.integer] | None = None, level: float = 0.95
) -> tuple[float, float] | None:
    """Interval of the mean of ``values [n]``, each in [0, 1]; None for one group.

    Wilson's for as many independent problems as would have the clustered error, with t for the normal quantile; where
    all values are 0 or all 1, as many as there are groups.
    Source: Wilson, J. American Statistical Association 22, 1927, 209-212.
    """
    clusters = _grouped(values, group)
    if clusters.count < 2:
        return None
    mean, variance = clusters.mean, clusters.mean * (1 - clusters.mean)
    residuals = clusters.sums - mean * clusters.tokens
    more = (clusters.count + 1) / (clusters.count - 1)  # one square more, of the mean size
    squared = more * float(residuals @ residuals) / float(clusters.tokens.sum()) ** 2
    z = t_quantile((1 + level) / 2, clusters.count - 1)
    if squared == 0 or variance == 0:
        squared = max(variance, 0.0) / clusters.count
        share = z * z / clusters.count
    else:
        share = z * z * squared / variance
    middle = (mean + share / 2) / (1 + share)
    reach = math.sqrt(z * z * squared + share * share / 4) / (1 + share)
    return min(max(middle - reach, 0.0), mean), max(min(middle + reach, 1.0), mean)


def _grouped(values: F64, group: NDArray[np.integer] | None) -> Clusters:
    if group is None:
        return Clusters(np.ones(len(values)), values.astype(np.float64), 0.0)
    _, index = np.unique(group, return_inverse=True)
    return Clusters(np.bincount(index).astype(np.float64), np.bincount(index, weights=values).astype(np.float64), 0.0)
