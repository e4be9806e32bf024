"""The figures of an audit through servers, from what both sides said of each position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.audit.distribution import tail
from truecast.audit.intervals import (
    difference_figure,
    estimate_excess_figure,
    estimate_figure,
    excess_figure,
    mean_figure,
    short_figure,
)
from truecast.audit.per_document import per_document
from truecast.audit.served_answers import Answer
from truecast.audit.served_estimators import Estimates, estimates, upper
from truecast.audit.summary import perplexity

F64 = NDArray[np.float64]

SAMPLED_WITHIN = 0.005
"""How far the share of the text's tokens among the known ones may be from what the reference gives them, beyond its
interval, before the text is said not to be the reference's: a server's rounding moves it a little."""

NAMES = {
    "estimate": "sum over the most probable tokens, and the tail by the token that follows",
    "lower": "lower bound: the most probable tokens, and the rest as one outcome",
}
"""How ``kl`` was made, by its name in ``measures``."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Two sides at ``n`` positions. ``same_top``: is the first choice the same?"""

    estimates: Estimates
    nll_ref: F64
    nll_cand: F64
    same_top: NDArray[np.bool_]


def compare(ref: Answer, best: NDArray[np.integer], cand: Answer, follows: NDArray[np.integer]) -> Compared:
    """Of one document. ``best`` ``[n]``: the reference's first choices; ``follows`` ``[n]``: the tokens that follow.

    Known on both sides are the tokens that both answers hold.
    """
    same = cand.ids[:, :, None] == ref.ids[:, None, :]
    both = same.any(2)
    p = np.where(both, np.take_along_axis(ref.logprobs, same.argmax(2), 1), -np.inf)
    q = np.where(both, cand.logprobs, -np.inf)
    inside = (both & (cand.ids == follows[:, None])).any(1)
    first = np.take_along_axis(cand.ids, cand.logprobs.argmax(1)[:, None], 1)[:, 0]
    return Compared(estimates(p, q, ref.follows, cand.follows, inside), -ref.follows, -cand.follows, first == best)


def joined(parts: Sequence[Compared]) -> Compared:
    """Several documents, one after another."""
    whole = Estimates(
        **{name: np.concatenate([getattr(c.estimates, name) for c in parts]) for name in Estimates.__slots__}
    )
    return Compared(
        whole,
        np.concatenate([c.nll_ref for c in parts]),
        np.concatenate([c.nll_cand for c in parts]),
        np.concatenate([c.same_top for c in parts]),
    )


def figures(
    cand: Compared,
    floor: Compared | None,
    doc: NDArray[np.int32],
    pos: NDArray[np.int32],
    names: Sequence[str],
    sampled: bool,
) -> dict[str, Any]:
    """The part of the document that statistics make, ready for JSON. Units: nats per token.

    ``sampled``: was the text drawn from the reference? Then ``kl`` is the estimate, else the lower bound. Keys: ``kl``,
    ``floor``, ``excess`` as in any audit; ``measures``: each estimator of ``candidate``, ``floor`` and ``excess``;
    ``covered``, ``top1``, ``perplexity``, ``per_document``.
    """
    chosen = "estimate" if sampled else "lower"
    measures = {name: _measure(name, cand.estimates, floor, doc) for name in ("log_ratio", "estimate", "lower")}
    measures["upper"] = {
        "candidate": _upper(cand.estimates, doc),
        "floor": None if floor is None else _upper(floor.estimates, doc),
        "excess": None,
    }
    main = measures[chosen]
    values: F64 = getattr(cand.estimates, chosen)
    flips = short_figure(~cand.same_top, doc)
    ends = flips["interval"] if flips["mean"] > 0 else None
    return {
        "kl": main["candidate"] | (tail(values) if chosen == "lower" else {}),
        "floor": main["floor"],
        "excess": main["excess"],
        "measures": measures,
        "covered": covered(cand.estimates, doc),
        "top1": {
            "agreement": 1 - flips["mean"],
            "interval": None if ends is None else [max(1 - ends[1], 0.0), 1 - ends[0]],
            "flips": int((~cand.same_top).sum()),
        },
        "perplexity": perplexity(cand.nll_ref, cand.nll_cand, doc),
        "per_document": per_document(doc, pos, values, names),
    }


def covered(found: Estimates, doc: NDArray[np.int32]) -> dict[str, Any]:
    """The reference's probability on the tokens known on both sides, and how many of the text's tokens they are.

    In text drawn from the reference the two agree on average. ``as_drawn``: do they, within the interval of the
    difference and ``SAMPLED_WITHIN``? None for one document.
    """
    inside = found.inside.astype(np.float64)
    difference = difference_figure(inside - (1 - found.tail), doc)
    ends = difference["interval"]
    return {
        "mean": 1 - float(found.tail.mean()),
        "least": 1 - float(found.tail.max()),
        "following": float(inside.mean()),
        "difference": {"mean": difference["mean"], "interval": ends},
        "as_drawn": None if ends is None else bool(ends[0] <= SAMPLED_WITHIN and ends[1] >= -SAMPLED_WITHIN),
    }


def _measure(name: str, cand: Estimates, floor: Compared | None, doc: NDArray[np.int32]) -> dict[str, Any]:
    def of(found: Estimates) -> dict[str, Any]:
        values: F64 = getattr(found, name)
        return mean_figure(values, doc) if name == "lower" else estimate_figure(values, found.lower, doc)

    if floor is None:
        return {"candidate": of(cand), "floor": None, "excess": None}
    other = floor.estimates
    values, others = getattr(cand, name), getattr(other, name)
    if name == "lower":
        excess = excess_figure(values, others, doc)
    else:
        excess = estimate_excess_figure(values, others, (cand.lower, other.lower), doc)
    ends = excess["interval"]
    return {
        "candidate": of(cand),
        "floor": of(other),
        "excess": excess | {"above_floor": None if ends is None else ends[0] > 0},
    }


def _upper(found: Estimates, doc: NDArray[np.int32]) -> Mapping[str, Any] | None:
    """The upper bound, its assumption and on how many tokens of the tail that rests; None where none was seen."""
    seen = found.spread[np.isfinite(found.spread)]
    if not seen.size:
        return None
    spread = float(seen.max())
    figure = mean_figure(upper(found.lower, found.tail, spread), doc)
    return {**figure, "tail_log_ratio_within": spread, "tail_tokens_seen": int(seen.size)}
