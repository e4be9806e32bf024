"""95% intervals of token-weighted means when documents, not tokens, were drawn.

A KL is positive and skewed, by token and by document. The textbook interval, mean +- t_{G-1} CR1, is then too short:
when no costly document happened to be drawn, the mean and its standard error are too small together. Three kinds of
figures, three intervals; docs/audit-statistics.md has how often each covers, benchmarks/interval_coverage.py measures it.

- A positive mean: symmetric on the log scale, [m exp(-t s), m exp(t s)]. s is the larger of the jackknife's standard
  error of log m and of what a lognormal spread of document means implies, sqrt((exp(v) - 1) sum w_g^2), where v is the
  token-weighted variance of the documents' log means and w_g a document's share of the tokens. The second learns the
  spread from all documents alike, so it does not collapse when the largest ones are missing.
- The excess of one positive mean over another on the same tokens: the two intervals joined by the method of variance
  estimates recovery with their correlation (Zou and Donner, Statistics in Medicine 27, 2008, 1693-1702).
- A difference of either sign, and the logarithm of a ratio: mean +- t_f s with the jackknife's s. Documents that stand out
  make s itself uncertain: f = 2 / (2 / (G - 1) + k / G), k the excess kurtosis of the jackknife's values (Satterthwaite's rule).
"""

from __future__ import annotations

import math

import numpy as np

from truecast.statistics.clusters import F64, Clusters, jackknife_error
from truecast.statistics.student import t_quantile

LEVEL = 0.95

Pair = tuple[float, float]


def positive_interval(clusters: Clusters) -> Pair:
    """Interval of a positive mean, symmetric on the log scale. Needs two documents.

    Where a document's sum, or the mean without one, is not positive, what needs its logarithm is left out: the model's
    spread in the first case, the log scale in the second (then the jackknife's, cut at 0).
    """
    left_out = clusters.left_out
    if not clusters.mean > 0 or not (left_out > 0).all():
        low, high = signed_interval(clusters)
        return (max(low, 0.0) if (clusters.sums >= 0).all() else low), high
    spread = jackknife_error(np.log(left_out))
    if (clusters.sums > 0).all():
        spread = max(spread, _lognormal_error(clusters))
    reach = min(t_quantile((1 + LEVEL) / 2, clusters.count - 1) * spread, 600.0)  # exp(600) is still a float
    return clusters.mean * math.exp(-reach), clusters.mean * math.exp(reach)


def signed_interval(clusters: Clusters) -> Pair:
    """Interval of a mean of either sign: the jackknife's, its degrees of freedom by kurtosis. Needs two documents."""
    return _jackknife_interval(clusters.mean, clusters.left_out)


def excess_interval(values: Clusters, floor: Clusters) -> Pair:
    """Interval of the difference of two positive means over the same documents. Needs two documents."""
    a, b = values.mean, floor.mean
    a_low, a_high = positive_interval(values)
    b_low, b_high = positive_interval(floor)
    together = _correlation(values.left_out, floor.left_out)
    return (
        a - b - _joined(a - a_low, b_high - b, together),
        a - b + _joined(a_high - a, b - b_low, together),
    )


def ratio_interval(values: Clusters, others: Clusters) -> Pair | None:
    """Interval of the ratio of two positive means over the same documents: the jackknife's of the ratio's logarithm.

    None where a mean, or one without some document, is not positive. Needs two documents.
    """
    a, b = values.left_out, others.left_out
    if not (values.mean > 0 and others.mean > 0 and (a > 0).all() and (b > 0).all()):
        return None
    low, high = _jackknife_interval(math.log(values.mean / others.mean), np.log(a / b))
    return math.exp(max(low, -600.0)), math.exp(min(high, 600.0))


def _jackknife_interval(estimate: float, left_out: F64) -> Pair:
    reach = t_quantile((1 + LEVEL) / 2, _degrees(left_out)) * jackknife_error(left_out)
    return estimate - reach, estimate + reach


def _joined(one: float, other: float, correlation: float) -> float:
    return math.sqrt(max(one * one - 2 * correlation * one * other + other * other, 0.0))


def _correlation(a: F64, b: F64) -> float:
    x, y = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else 0.0


def _lognormal_error(clusters: Clusters) -> float:
    """Standard error of log m if the documents' means are lognormal."""
    share = clusters.tokens / clusters.tokens.sum()
    logs = np.log(clusters.sums / clusters.tokens)
    together = float(share @ share)
    variance = float(share @ (logs - share @ logs) ** 2) / (1 - together)
    return math.sqrt(math.expm1(min(variance, 600.0)) * together)


def _degrees(left_out: F64) -> float:
    apart = np.abs(left_out - left_out.mean())
    groups = len(apart)
    if not apart.any():
        return float(groups - 1)
    squares = (apart / apart.max()) ** 2  # their fourth powers neither vanish nor overflow
    kurtosis = float((squares**2).mean() / squares.mean() ** 2) - 3
    return 2 / (2 / (groups - 1) + max(kurtosis, 0.0) / groups)
