"""The shape of the KL over tokens, small enough for a report: a histogram over powers of ten."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST, PER_DECADE = -10, 2, 4
"""The bins go from 10^LOWEST to 10^HIGHEST nats; what lies outside goes to the outer bins, 0 is counted apart."""


def distribution(kl: NDArray[np.float64], floor: NDArray[np.float64] | None) -> dict[str, Any]:
    """Tokens and share of the total KL in each bin, outer empty bins cut off.

    Keys: ``log10_edges`` (one more than bins), ``tokens``, ``kl_share``, ``floor_tokens`` (None without a floor),
    ``zero_tokens`` (KL of 0, or below it by rounding). Units: nats.
    """
    edges = np.linspace(LOWEST, HIGHEST, (HIGHEST - LOWEST) * PER_DECADE + 1)
    tokens, weights = _histogram(kl, edges)
    floors = None if floor is None else _histogram(floor, edges)[0]
    used = np.flatnonzero(tokens if floors is None else tokens + floors)
    first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
    total = float(weights.sum())
    return {
        "log10_edges": [float(e) for e in edges[first : last + 1]] if used.size else [],
        "tokens": [int(n) for n in tokens[first:last]],
        "kl_share": [float(w) / total for w in weights[first:last]] if total > 0 else [],
        "floor_tokens": None if floors is None else [int(n) for n in floors[first:last]],
        "zero_tokens": int((kl <= 0).sum()),
    }


def tail(kl: NDArray[np.float64]) -> dict[str, float]:
    """``median`` and ``p99`` in nats, and ``worst_1_percent_share``: what the worst hundredth of tokens adds to the sum.

    The worst hundredth is at least one token.
    """
    worst = max(1, round(len(kl) / 100))
    total = float(kl.sum())
    share = float(np.partition(kl, len(kl) - worst)[-worst:].sum()) / total if total > 0 else 0.0
    return {
        "median": float(np.median(kl)),
        "p99": float(np.quantile(kl, 0.99)),
        "worst_1_percent_share": share,
    }


def _histogram(kl: NDArray[np.float64], edges: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    positive = kl[kl > 0]
    place = np.clip(np.searchsorted(edges, np.log10(positive), side="right") - 1, 0, len(edges) - 2)
    bins = len(edges) - 1
    weights = np.bincount(place, weights=positive, minlength=bins).astype(np.float64)
    return np.bincount(place, minlength=bins).astype(np.int64), weights
