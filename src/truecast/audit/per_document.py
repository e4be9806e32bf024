"""The mean KL of each document, with an interval from within it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.statistics.clusters import by_document
from truecast.statistics.intervals import positive_interval

BLOCK = 32
"""Successive tokens that count as one draw: neighbours resemble one another."""

ENOUGH_BLOCKS = 8


def per_document(
    doc: NDArray[np.int32], pos: NDArray[np.int32], kl: NDArray[np.float64], names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """One row for each document, in order: ``document`` (index), ``id``, ``tokens``, ``mean``, ``interval``.

    ``doc``, ``pos`` and ``kl`` ``[n]``: document, position in it and KL of each scored position. ``names``: ids by
    document index. The interval (nats per token) is of this document's own mean, from blocks of ``BLOCK`` successive
    positions; None with fewer than ``ENOUGH_BLOCKS`` of them.
    """
    order = np.argsort(doc, kind="stable")
    doc, pos, kl = doc[order], pos[order], kl[order]
    starts = np.flatnonzero(np.r_[True, doc[1:] != doc[:-1]])
    rows = []
    for start, end in zip(starts, [*starts[1:], len(doc)], strict=True):
        blocks = by_document(kl[start:end], pos[start:end] // BLOCK)
        interval = list(positive_interval(blocks)) if blocks.count >= ENOUGH_BLOCKS else None
        index = int(doc[start])
        rows.append(
            {
                "document": index,
                "id": names[index] if names is not None else str(index),
                "tokens": int(end - start),
                "mean": blocks.mean,
                "interval": interval,
            }
        )
    return rows
