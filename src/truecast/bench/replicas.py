"""Replicas behind a router against one replica's curve: what routing, skew and shared parts cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from truecast.errors import InputError


def curve_of(path: Path) -> dict[float, float]:
    """Median tok/s of a stream by concurrency, from one replica's bench.json. Raises: InputError."""
    where = str(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=where) from None
    if not isinstance(document, dict) or document.get("schema") != "truecast.bench/1":
        raise InputError("is no bench.json", where=where, fix="the bench.json that `truecast bench --out` wrote")
    try:
        curve = {float(c["concurrency"]): c["figures"]["stream"]["value"] for c in document["levels"]}
    except (KeyError, TypeError, ValueError):
        raise InputError("is no bench.json of this version", where=where) from None
    curve = {c: float(v) for c, v in curve.items() if isinstance(v, int | float) and v > 0}
    if not curve:
        raise InputError("has no speed of a stream", where=where)
    return curve


def against_one(speed: float, concurrency: int, replicas: int, curve: Mapping[float, float]) -> dict[str, Any]:
    """Speed of a stream over what one replica gives at its share of the streams, and why there may be none.

    Between two measured levels the time of a token is taken as linear in the streams, t = a + b c; beyond them nothing
    is said. Keys: ``at``, ``expected``, ``ratio``, ``reason``.
    """
    share = concurrency / replicas
    levels = sorted(curve)
    if not levels[0] <= share <= levels[-1]:
        return {
            "at": share,
            "expected": None,
            "ratio": None,
            "reason": f"one replica was measured at {', '.join(f'{c:g}' for c in levels)} streams, not around {share:g}",
        }
    expected = 1 / float(np.interp(share, levels, [1 / curve[c] for c in levels]))
    return {"at": share, "expected": expected, "ratio": speed / expected, "reason": None}
