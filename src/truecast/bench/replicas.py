"""Replicas behind a router against one replica's curve: what routing, skew and shared parts cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from truecast.bench.compare import AGAIN, field_of, parse_bench
from truecast.errors import InputError


def curve_of(path: Path, prompts: str, sampling: Mapping[str, Any]) -> dict[float, float]:
    """Median tok/s of a stream by concurrency, from one replica's bench.json.

    ``prompts``: the hash of the file of this run, ``sampling`` its settings: the other's have to be the same.
    Raises: InputError.
    """
    where = str(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read: {error}", where=where) from None
    if not isinstance(document, dict):
        raise InputError("is no bench.json", where=where, fix=AGAIN)
    load = parse_bench(document, where)
    if field_of(document, "prompts.sha256") != prompts or document.get("sampling") != dict(sampling):
        raise InputError("has other prompts or sampling", where=where, fix="measure one replica with the same")
    if document.get("sound") is not True:
        raise InputError("holds figures that do not stand; its own report says why", where=where)
    if document.get("replicas") != 1:
        raise InputError("is of more than one replica", where=where)
    curve = {float(c): math.fsum(r["stream"]) / len(r["stream"]) for c, r in load.rates.items() if "stream" in r}
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
