"""The figures of an audit, from its positions: the part of ``truecast.audit/1`` that statistics make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.audit.buckets import by_confidence, by_depth, flips_by_margin
from truecast.audit.distribution import distribution, tail
from truecast.audit.intervals import difference_figure, excess_figure, mean_figure, short_figure
from truecast.audit.per_document import per_document
from truecast.audit.positions import Positions
from truecast.errors import InputError


def summary(
    positions: Positions,
    floor: Mapping[int, NDArray[np.float64]] | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """All figures, ready for JSON: no NaN, no infinity. Merge the result into the audit's document.

    ``floor``: for each seed, KL(reference || noisy reference) ``[n]`` at the same positions in the same order; None
    where no floor was run, and then ``floor`` and ``excess`` are None. ``names``: the documents' ids by index.
    Keys: ``kl, floor, excess, reverse_kl, perplexity, top1, by_confidence, by_position, distribution, per_document``.
    Units: nats per token. Raises: InputError without positions, or where a floor has another length.
    """
    if not len(positions):
        raise InputError("no position was scored", fix="give documents with more than one token")
    average = None if not floor else _average(floor, len(positions))
    return {
        "kl": mean_figure(positions.kl, positions.doc) | tail(positions.kl),
        "floor": None if not floor else _floor(floor),
        "excess": None if average is None else _excess(positions, average),
        "reverse_kl": mean_figure(positions.reverse_kl, positions.doc) | tail(positions.reverse_kl),
        "perplexity": perplexity(positions.nll_ref, positions.nll_cand, positions.doc),
        "top1": _top1(positions),
        "by_confidence": by_confidence(positions),
        "by_position": by_depth(positions),
        "distribution": distribution(positions.kl, average),
        "per_document": per_document(positions.doc, positions.pos, positions.kl, names),
    }


def _average(floor: Mapping[int, NDArray[np.float64]], length: int) -> NDArray[np.float64]:
    for seed, kl in floor.items():
        if kl.shape != (length,):
            raise InputError(f"{list(kl.shape)} values, but {length:,} positions", where=f"floor of seed {seed}")
    average: NDArray[np.float64] = np.mean(np.stack(list(floor.values())), axis=0)
    return average


def _floor(floor: Mapping[int, NDArray[np.float64]]) -> dict[str, Any]:
    """Each seed's mean, their mean, and their standard deviation (None for one seed)."""
    means = [float(kl.mean()) for kl in floor.values()]
    return {
        "seeds": [{"seed": seed, "mean": mean} for seed, mean in zip(floor, means, strict=True)],
        "mean": float(np.mean(means)),
        "sd": float(np.std(means, ddof=1)) if len(means) > 1 else None,
    }


def _excess(positions: Positions, floor: NDArray[np.float64]) -> dict[str, Any]:
    """KL less the floor. ``above_floor``: does the interval lie above 0? None without an interval."""
    figure = excess_figure(positions.kl, floor, positions.doc)
    interval = figure["interval"]
    return figure | {"above_floor": None if interval is None else interval[0] > 0}


def perplexity(nll_ref: NDArray[np.float64], nll_cand: NDArray[np.float64], doc: NDArray[np.int32]) -> dict[str, Any]:
    """Perplexities of both sides and their ratio, whose interval is that of the difference of the NLLs by document."""
    difference = difference_figure(nll_cand - nll_ref, doc)
    interval = difference["interval"]
    return {
        "reference": _exp(float(nll_ref.mean())),
        "candidate": _exp(float(nll_cand.mean())),
        "ratio": _exp(difference["mean"]),
        "ratio_interval": None if interval is None else [_exp(end) for end in interval],
        "nll_difference": difference,
    }


def _top1(positions: Positions) -> dict[str, Any]:
    """Share of positions where both sides have the same first choice, and the others by the reference's margin.

    Where none differs there is no interval: how rare a rare event is cannot be seen from none.
    """
    flips = short_figure(~positions.same_top, positions.doc)
    interval = flips["interval"] if flips["mean"] > 0 else None
    return {
        "agreement": 1 - flips["mean"],
        "interval": None if interval is None else [max(1 - interval[1], 0.0), 1 - interval[0]],
        "flips": int((~positions.same_top).sum()),
        "flips_by_margin": flips_by_margin(positions),
    }


def _exp(x: float) -> float | None:
    """e^x; None where that is no float."""
    return math.exp(x) if x < 700 else None
