"""The ratio of two rates, each measured in several runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from truecast.statistics.equivalence import Estimate


@dataclass(frozen=True, slots=True)
class Ratio:
    """``value``: geometric mean of ``b``'s runs over that of ``a``'s. ``log``: its logarithm with error, or None."""

    value: float
    log: Estimate | None

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Interval of the ratio; None where the runs show no spread: one on each side."""
        if self.log is None:
            return None
        low, high = self.log.interval(level)
        return math.exp(max(low, -600.0)), math.exp(min(high, 600.0))


def ratio_of_runs(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Ratio of positive rates of independent runs, b over a.

    Logarithms of runs are taken as normal with one spread on both sides (a machine's relative spread from run to run is
    its own, not the checkpoint's): Student's two-sample interval with len(a) + len(b) - 2 degrees of freedom.
    Raises: ValueError without runs, or for a rate that is not positive and finite.
    """
    if not a or not b or not all(0 < x < math.inf for x in (*a, *b)):
        raise ValueError("a ratio needs positive rates of at least one run on each side")
    one, other = np.log(np.array(a)), np.log(np.array(b))
    mean, degrees = float(other.mean() - one.mean()), len(a) + len(b) - 2
    if degrees == 0:
        return Ratio(math.exp(mean), None)
    variance = float(((one - one.mean()) ** 2).sum() + ((other - other.mean()) ** 2).sum()) / degrees
    return Ratio(math.exp(mean), Estimate(mean, math.sqrt(variance * (1 / len(a) + 1 / len(b))), degrees))
