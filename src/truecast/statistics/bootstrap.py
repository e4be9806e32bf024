"""BCa bootstrap of a token-weighted mean: whole documents are drawn, with replacement.

Source: Efron, J. American Statistical Association 82(397), 1987, 171-185; acceleration by the jackknife.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from truecast.statistics.clusters import F64, Clusters

DRAWS = 4000
SEED = 20240229
"""Fixed, so that the same positions give the same interval."""

_CELLS = 1_000_000
"""Documents drawn at once, all draws together: bounds memory."""


def bca_interval(clusters: Clusters, level: float = 0.95) -> tuple[float, float]:
    """Bias-corrected and accelerated interval of the mean; needs two documents. Deterministic."""
    means = np.sort(_resampled(clusters))
    mean, left_out = clusters.mean, clusters.left_out
    if means[0] == means[-1]:
        return mean, mean
    normal = NormalDist()
    same = 1e-12 * (means[-1] - means[0])  # the same documents, drawn in another order, add up to almost the same
    below = 0.5 * (np.count_nonzero(means < mean - same) + np.count_nonzero(means <= mean + same))
    bias = normal.inv_cdf(min(max(below / DRAWS, 1 / DRAWS), 1 - 1 / DRAWS))
    pull = left_out.mean() - left_out
    acceleration = float((pull**3).sum() / (6 * (pull**2).sum() ** 1.5)) if np.any(pull) else 0.0
    ends = []
    for probability in ((1 - level) / 2, (1 + level) / 2):
        z = bias + normal.inv_cdf(probability)
        ends.append(normal.cdf(bias + z / max(1 - acceleration * z, 1e-3)))
    low, high = np.quantile(means, ends)
    return float(low), float(high)


def _resampled(clusters: Clusters) -> F64:
    """Means of ``DRAWS`` corpora of as many documents."""
    generator = np.random.default_rng(SEED)
    groups = clusters.count
    step = max(1, _CELLS // groups)
    means = []
    for start in range(0, DRAWS, step):
        drawn = generator.integers(0, groups, (min(step, DRAWS - start), groups))
        means.append(clusters.sums[drawn].sum(axis=1) / clusters.tokens[drawn].sum(axis=1))
    return np.concatenate(means)
