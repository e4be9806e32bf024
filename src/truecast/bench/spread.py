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
    k = max(0, int(n / 2 - 10 * math.sqrt(n)))  # nothing to speak of lies below
    term = tail = math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
    while tail <= (1 - LEVEL) / 2:
        k += 1
        term *= (n - k + 1) / k
        tail += term
    if k < 1:
        return None
    ordered = sorted(values)
    return float(ordered[k - 1]), float(ordered[n - k])
