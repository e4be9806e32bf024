"""Where the loss sits: KL by the reference's confidence and by depth, lost first choices by margin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.audit.intervals import short_figure
from truecast.audit.positions import Positions

CONFIDENCE = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
"""Edges of buckets of the reference's highest probability."""

MARGINS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, math.inf)
"""Edges of buckets of the reference's margin, in nats."""

FIRST_DEPTH = 16
"""The first bucket of depth ends here; each further one ends at twice the depth."""


def by_confidence(positions: Positions) -> list[dict[str, Any]]:
    """KL by the reference's highest probability; each bucket holds its lower edge, the last one also 1."""
    return _kl_by(positions, positions.ref_top_prob.astype(np.float64), CONFIDENCE)


def by_depth(positions: Positions) -> list[dict[str, Any]]:
    """KL by position in the document: 0 to 15, 16 to 31, 32 to 63 and so on; ``to`` is not in the bucket."""
    edges = [0, FIRST_DEPTH]
    while edges[-1] <= int(positions.pos.max()):
        edges.append(2 * edges[-1])
    return _kl_by(positions, positions.pos.astype(np.float64), edges)


def flips_by_margin(positions: Positions) -> list[dict[str, Any]]:
    """Positions where the candidate's first choice is another, by the reference's margin in nats.

    The last bucket has no upper edge: its ``to`` is None.
    """
    rows = []
    for low, high, chosen in _buckets(positions.ref_margin.astype(np.float64), MARGINS):
        tokens, flips = int(chosen.sum()), int((chosen & ~positions.same_top).sum())
        to = None if math.isinf(high) else high
        rows.append({"from": low, "to": to, "tokens": tokens, "flips": flips, "rate": flips / tokens})
    return rows


def _kl_by(
    positions: Positions, figure: NDArray[np.float64], edges: tuple[float, ...] | list[int]
) -> list[dict[str, Any]]:
    total = float(positions.kl.sum())
    rows = []
    for low, high, chosen in _buckets(figure, edges):
        kl, doc = positions.kl[chosen], positions.doc[chosen]
        rows.append(
            {
                "from": low,
                "to": high,
                "tokens": len(kl),
                "documents": len(np.unique(doc)),
                **short_figure(kl, doc),
                "kl_share": float(kl.sum()) / total if total > 0 else 0.0,
            }
        )
    return rows


def _buckets(
    figure: NDArray[np.float64], edges: tuple[float, ...] | list[int]
) -> list[tuple[float, float, NDArray[np.bool_]]]:
    """Each bucket that is not empty, with the positions in it; figures outside all edges go to the outer buckets."""
    place = np.clip(np.searchsorted(edges, figure, side="right") - 1, 0, len(edges) - 2)
    return [(edges[i], edges[i + 1], place == i) for i in np.unique(place)]
