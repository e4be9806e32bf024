"""The figures of an audit, from its positions: the part of ``truecast.audit/1`` that statistics make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.audit.positions import Positions


def summary(positions: Positions, floor: Mapping[int, NDArray[np.float64]] | None = None) -> dict[str, Any]:
    """Keys ``kl, floor, excess, reverse_kl, perplexity, top1, by_confidence, by_position, distribution, documents``.

    ``floor``: for each seed, KL(reference || noisy reference) ``[n]`` at the same positions, in the same order; None
    where no floor was run, and then ``floor`` and ``excess`` are None. Merge the result into the audit's document.
    """
    raise NotImplementedError
