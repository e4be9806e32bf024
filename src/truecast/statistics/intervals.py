"""95% intervals of token-weighted means when documents, not tokens, were drawn.

A KL is positive and skewed, by token and by document. The textbook interval, mean +- t_{G-1} CR1, is then too short:
when no costly document happened to be drawn, the mean and its standard error are too small together. Four kinds of
figures, four intervals; docs/audit-statistics.md has how often each covers, benchmarks/interval_coverage.py measures it.

- A positive mean: symmetric on the log scale, [m exp(-r), m exp(r)]. r is the larger of two reaches: the jackknife's, and
  t_{G-1} times what a law of the documents' means implies. The law knows two kinds of documents, those without cost (0) and
  lognormal ones. It learns the spread from all documents alike, so it does not collapse when the largest are missing.
  How small a small mean is says nothing of the upper end: the law decides how many of the smallest count as 0.
- The excess of one positive mean over another on the same tokens: the two intervals joined by the method of variance
  estimates recovery with their correlation (Zou and Donner, Statistics in Medicine 27, 2008, 1693-1702), changed for
  skewed intervals of figures that rise and fall together: of the second mean, the part that moves with the first counts
  with the reach to the same side, the rest with that to the other side. Without skew both are the same.
- A positive mean and a rest of either sign, such as a lower bound of a KL and what a noisy estimate adds: joined likewise.
  A correlation that would make the interval shorter is left out: from few documents it is not known well enough.
- A difference of either sign, and the logarithm of a ratio: mean +- t_f s with the jackknife's s. Documents that stand out
  make s itself uncertain: f = 2 / (2 / (G - 1) + k / G), k the excess kurtosis of the jackknife's values (Satterthwaite's rule).
"""

from __future__ import annotations

import math

import numpy as np

from truecast.statistics.clusters import F64, Clusters, jackknife_error
from truecast.statistics.student import t_quantile

LEVEL = 0.95

GROWN, GROWN_FEW = 1.25, 5.0
"""The variance of log means is grown by ``GROWN`` (1 + ``GROWN_FEW`` / n) where the smallest documents were cut and n are
left. Chosen by benchmarks/interval_coverage.py: without cheap documents the coverage stays, with them it is 95 or more."""

Pair = tuple[float, float]


def positive_interval(clusters: Clusters) -> Pair:
    """Interval of a positive mean, symmetric on the log scale. Needs two documents.

    Where a document's sum is negative, or the mean is 0, the log scale is left out: the jackknife's interval, cut at 0 if
    no document is negative.
    """
    if not clusters.mean > 0 or (clusters.sums < 0).any():
        low, high = signed_interval(clusters)
        return (max(low, 0.0) if (clusters.sums >= 0).all() else low), high
    reach = max(_jackknife_reach(clusters), t_quantile((1 + LEVEL) / 2, clusters.count - 1) * _model_error(clusters))
    return clusters.mean * math.exp(-reach), clusters.mean * math.exp(min(reach, 600.0))  # exp(600) is still a float


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
        a - b - _joined(a - a_low, b - b_low, b_high - b, together),
        a - b + _joined(a_high - a, b_high - b, b - b_low, together),
    )


def sum_interval(part: Clusters, interval: Pair, rest: Clusters) -> Pair:
    """Interval of the mean of ``part``, of which ``interval`` is known, plus that of ``rest``, of either sign.

    Both over the same documents; needs two.
    """
    a, b = part.mean, rest.mean
    _, high = signed_interval(rest)
    together = -max(_correlation(part.left_out, rest.left_out), 0.0)
    reach = high - b
    return (
        a + b - _joined(a - interval[0], reach, reach, together),
        a + b + _joined(interval[1] - a, reach, reach, together),
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


def _joined(one: float, same: float, opposite: float, correlation: float) -> float:
    """Reach of a difference: from that of the first figure, and the second's to the ``same`` and the ``opposite`` side."""
    moves = correlation * (same if correlation > 0 else opposite)
    return math.sqrt((one - moves) ** 2 + max(1 - correlation**2, 0.0) * opposite**2)


def _correlation(a: F64, b: F64) -> float:
    x, y = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else 0.0


def _jackknife_reach(clusters: Clusters) -> float:
    """Reach on the log scale, by the jackknife of log m. A mean r m without a document that holds almost everything
    counts as r - 1 away, not log r: else the reach would grow without end with how small the others are."""
    ratio = clusters.left_out / clusters.mean
    return _jackknife_interval(0.0, np.where(ratio > 1, np.log(np.maximum(ratio, 1.0)), ratio - 1))[1]


def _model_error(clusters: Clusters) -> float:
    """Standard error of log m if the k documents of smallest mean cost 0 and the others' means are lognormal.

    With shares w_g of the tokens, K = sum of w_g over the others, and v the variance of their log means:
    sum w_g^2 (x_g / m - 1)^2 = sum_{k smallest} w_g^2 + sum_{others} w_g^2 ((e^v - 1) / K^2 + (1 / K - 1)^2).
    Of all k the one that makes it smallest: a huge v is spread at the low end. Cutting takes spread from lognormal
    documents too, so v is grown where k > 0; without, the smallest of all would be too small.
    """
    share = clusters.tokens / clusters.tokens.sum()
    means = clusters.sums / clusters.tokens
    order = np.argsort(means)[np.count_nonzero(means <= 0) :]
    cut = clusters.count - np.arange(len(order), 0, -1)
    w, logs = share[order], np.log(means[order] / means.max())
    kept, squares = _suffix_sums(w), _suffix_sums(w * w)
    centre = _suffix_sums(w * logs) / kept
    several = 1 - squares / kept**2
    several[-1] = 1.0  # one document shows no variance
    variance = np.maximum(_suffix_sums(w * logs**2) / kept - centre**2, 0.0) / several
    variance *= np.where(cut > 0, GROWN * (1 + GROWN_FEW / (clusters.count - cut)), 1.0)
    others = squares * (np.expm1(np.minimum(variance, 600.0)) / kept**2 + (1 / kept - 1) ** 2)
    return math.sqrt(float((share @ share - squares + others).min()))


def _suffix_sums(values: F64) -> F64:
    sums: F64 = values[::-1].cumsum()[::-1]
    return sums


def _degrees(left_out: F64) -> float:
    apart = np.abs(left_out - left_out.mean())
    groups = len(apart)
    if not apart.any():
        return float(groups - 1)
    squares = (apart / apart.max()) ** 2  # their fourth powers neither vanish nor overflow
    kurtosis = float((squares**2).mean() / squares.mean() ** 2) - 3
    return 2 / (2 / (groups - 1) + max(kurtosis, 0.0) / groups)
