"""How sure a figure is: intervals over requests and over runs, each named by its unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from truecast.statistics.student import t_quantile

LEVEL = 0.95

Pair = tuple[float, float]


def interval_over_runs(values: Sequence[float]) -> Pair | None:
    """95% interval of the mean over runs (unit: run): mean +- t s / sqrt(runs). ``None`` for a single run."""
    n = len(values)
    if n < 2:
        return None
    half = t_quantile((1 + LEVEL) / 2, n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    mean = float(np.mean(values))
    return mean - half, mean + half


def median_interval(values: Sequence[float]) -> Pair | None:
    """95% interval of a median from order statistics (unit: request); ``None`` where there are too few.

    The largest k with P(Binomial(n, 1/2) < k) <= 2.5%: the k-th value from below and from above. It makes no
    assumption on the distribution, but takes requests as independent; those of one run share its batch.
    """
    n = len(values)
    k, tail = 0, 0.5**n if n < 1000 else 0.0
    if n >= 1000:
        k = int(n / 2 - 1.96 * math.sqrt(n) / 2)
    else:
        while tail <= (1 - LEVEL) / 2:
            k += 1
            tail += math.comb(n, k) * 0.5**n
    if k < 1:
        return None
    ordered = sorted(values)
    return float(ordered[k - 1]), float(ordered[n - k])
