"""Sums by document, and what they say of the token-weighted mean: its standard error and the design effect.

The words are the audit's; what holds for tokens of a document holds for problems of a passage or answers to a problem.
Tokens of one document resemble one another, so a document, not a token, is what was drawn at random. The mean is a ratio
of two sums over documents, m = sum S_g / sum n_g (total and tokens of document g); with residuals e_g = S_g - m n_g

    CR1        se^2 = G / (G - 1) * sum e_g^2 / (sum n_g)^2
    jackknife  se^2 = (G - 1) / G * sum (m_(g) - mean m_(.))^2,   m_(g) the mean without document g

Source: Cochran, Sampling Techniques, 3rd edition, 6.4 and 6.17; Cameron and Miller, J. Human Resources 50(2), 2015, 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clusters:
    """Per-document sums. Shapes: ``tokens`` and ``sums`` ``[G]``. ``scatter``: sum of (x - m)^2 over all tokens."""

    tokens: F64
    sums: F64
    scatter: float

    @property
    def count(self) -> int:
        """Number of documents, G."""
        return len(self.tokens)

    @property
    def mean(self) -> float:
        """Token-weighted mean."""
        return float(self.sums.sum() / self.tokens.sum())

    @property
    def left_out(self) -> F64:
        """The mean without each document ``[G]``; needs two documents."""
        means: F64 = (self.sums.sum() - self.sums) / (self.tokens.sum() - self.tokens)
        return means


def by_document(values: NDArray[np.floating] | NDArray[np.bool_], doc: NDArray[np.integer]) -> Clusters:
    """Sum ``values [n]`` by document index ``doc [n]``. Raises: ValueError without values."""
    if not len(values):
        raise ValueError("no values")
    x = values.astype(np.float64)
    _, index = np.unique(doc, return_inverse=True)
    tokens = np.bincount(index).astype(np.float64)
    deviations = x - x.mean()
    return Clusters(tokens, np.bincount(index, weights=x).astype(np.float64), float(deviations @ deviations))


def cr1_error(clusters: Clusters) -> float:
    """Cluster-robust standard error of the mean, linearised; needs two documents."""
    residuals = clusters.sums - clusters.mean * clusters.tokens
    groups = clusters.count
    return float(np.sqrt(groups / (groups - 1) * (residuals @ residuals)) / clusters.tokens.sum())


def jackknife_error(left_out: F64) -> float:
    """Standard error of a statistic from its values without each document ``[G]``."""
    groups = len(left_out)
    return float(np.sqrt((groups - 1) / groups * ((left_out - left_out.mean()) ** 2).sum()))


def design_effect(clusters: Clusters) -> float | None:
    """Variance of the mean over what it would be if tokens were independent; None where that is zero."""
    n = float(clusters.tokens.sum())
    independent = clusters.scatter / (n * (n - 1)) if n > 1 else 0.0
    return cr1_error(clusters) ** 2 / independent if independent > 0 else None
