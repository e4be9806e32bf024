"""The figures of an audit with their error bars; how these are made: :mod:`truecast.statistics.intervals`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.audit.few_documents import warning
from truecast.statistics.bootstrap import bca_interval
from truecast.statistics.clusters import Clusters, by_document, cr1_error, design_effect
from truecast.statistics.intervals import LEVEL, Pair, excess_interval, positive_interval, signed_interval, sum_interval
from truecast.statistics.student import t_quantile


def mean_figure(values: NDArray[np.floating], doc: NDArray[np.integer]) -> dict[str, Any]:
    """Mean of a figure that is never negative, such as a KL, with all its error bars.

    Keys: ``mean``, ``se`` (CR1), ``interval`` (log scale), ``cr1``, ``bca``, ``documents``, ``tokens``, ``deff``,
    ``warning``. One document: no errors, and the warning says why. Shapes: ``values`` and ``doc`` ``[n]``, n > 0.
    """
    clusters = by_document(values, doc)
    if clusters.count == 1:
        return _figure(clusters, None)
    return _figure(clusters, positive_interval(clusters))


def difference_figure(values: NDArray[np.floating], doc: NDArray[np.integer]) -> dict[str, Any]:
    """Mean of a per-token difference of either sign; keys as :func:`mean_figure`."""
    clusters = by_document(values, doc)
    if clusters.count == 1:
        return _figure(clusters, None)
    return _figure(clusters, signed_interval(clusters))


def excess_figure(
    values: NDArray[np.floating], floor: NDArray[np.floating], doc: NDArray[np.integer]
) -> dict[str, Any]:
    """Mean of ``values`` less mean of ``floor``, both never negative; keys as :func:`mean_figure`."""
    clusters = by_document(values - floor, doc)
    if clusters.count == 1:
        return _figure(clusters, None)
    return _figure(clusters, excess_interval(by_document(values, doc), by_document(floor, doc)))


def estimate_figure(
    values: NDArray[np.floating], lower: NDArray[np.floating], doc: NDArray[np.integer]
) -> dict[str, Any]:
    """Mean of an estimate of either sign with a lower bound that is never negative; keys as :func:`mean_figure`.

    The bound holds most of what differs between documents; its interval knows of their skew.
    """
    clusters = by_document(values, doc)
    if clusters.count == 1:
        return _figure(clusters, None)
    part = by_document(lower, doc)
    return _figure(clusters, sum_interval(part, positive_interval(part), by_document(values - lower, doc)))


def estimate_excess_figure(
    values: NDArray[np.floating],
    floor: NDArray[np.floating],
    lower: tuple[NDArray[np.floating], NDArray[np.floating]],
    doc: NDArray[np.integer],
) -> dict[str, Any]:
    """Mean of ``values`` less mean of ``floor``, estimates with the ``lower`` bounds of both; keys as :func:`mean_figure`."""
    clusters = by_document(values - floor, doc)
    if clusters.count == 1:
        return _figure(clusters, None)
    ours, theirs = lower
    known = excess_interval(by_document(ours, doc), by_document(theirs, doc))
    part, rest = by_document(ours - theirs, doc), by_document((values - floor) - (ours - theirs), doc)
    return _figure(clusters, sum_interval(part, known, rest))


def short_figure(values: NDArray[np.floating] | NDArray[np.bool_], doc: NDArray[np.integer]) -> dict[str, Any]:
    """``mean`` and ``interval`` of a figure that is never negative; the interval None for one document."""
    clusters = by_document(values, doc)
    return {"mean": clusters.mean, "interval": _listed(positive_interval(clusters) if clusters.count > 1 else None)}


def _figure(clusters: Clusters, interval: Pair | None) -> dict[str, Any]:
    several = clusters.count > 1
    error = cr1_error(clusters) if several else None
    reach = t_quantile((1 + LEVEL) / 2, clusters.count - 1) * error if error is not None else 0.0
    return {
        "mean": clusters.mean,
        "se": error,
        "interval": _listed(interval),
        "cr1": [clusters.mean - reach, clusters.mean + reach] if several else None,
        "bca": _listed(bca_interval(clusters, LEVEL)) if several else None,
        "documents": clusters.count,
        "tokens": int(clusters.tokens.sum()),
        "deff": design_effect(clusters) if several else None,
        "warning": warning(clusters.count),
    }


def _listed(interval: Pair | None) -> list[float] | None:
    return None if interval is None else list(interval)
