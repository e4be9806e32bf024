"""The recorded document of a load test: what was asked, who answered, the figures of every level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from truecast import __version__
from truecast.bench.figures import DEFINITIONS, PER_REQUEST
from truecast.bench.prompts import Prompts
from truecast.bench.replicas import against_one
from truecast.bench.server import Server
from truecast.bench.sound import faults, remarks
from truecast.bench.spread import interval_over_runs, median_interval

SCHEMA = "truecast.bench/1"


@dataclass(frozen=True)
class Options:
    """What to measure: ``levels`` of concurrency, ``requests`` or ``duration`` (s) of each, so many ``runs``."""

    levels: Sequence[int]
    requests: int | None = None
    duration: float | None = None
    runs: int = 2
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the request body: temperature, top_p, max_tokens."""
    model: str | None = None
    keep_cache: bool = False
    replicas: int = 1
    single: Path | None = None
    key: str | None = field(default=None, repr=False)
    """The server's key."""


def head(server: Server, prompts: Prompts, aiperf: str, options: Options, command: Sequence[str]) -> dict[str, Any]:
    """The document before the first run."""
    return {
        "schema": SCHEMA,
        "truecast": __version__,
        "command": list(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "complete": False,
        "sound": True,
        "server": server.document(),
        "aiperf": aiperf,
        "prompts": prompts.document(),
        "sampling": dict(options.sampling),
        "requests": options.requests,
        "duration": options.duration,
        "replicas": options.replicas,
        "definitions": DEFINITIONS,
        "levels": [],
    }


def finish_level(
    level: dict[str, Any], document: dict[str, Any], server: Server, curve: Mapping[float, float] | None
) -> None:
    """Bring a level's figures and the document's verdict up to date with its runs."""
    runs, concurrency = level["runs"], level["concurrency"]
    level["figures"] = {name: _figure(name, runs) for name in runs[0]["figures"]}
    level["acceptance_length"] = _mean([r["server"]["acceptance_length"] for r in runs])
    level["faults"] = _distinct(f for r in runs for f in faults(r, concurrency))
    level["remarks"] = _distinct(x for r in runs for x in remarks(r, concurrency, server, document["prompts"]))
    speed, replicas = level["figures"]["stream"]["value"], document["replicas"]
    if replicas > 1 and concurrency < replicas:
        level["remarks"].append(
            f"{concurrency} streams leave some of {replicas} replicas idle: a router sends each one way"
        )
    if curve is not None and speed is not None:
        level["against_one_replica"] = against_one(speed, concurrency, replicas, curve)
    document["sound"] = not any(x["faults"] for x in document["levels"])


def _figure(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A figure over the runs: their mean with its interval (unit: run), and for a median that over all requests."""
    values = [r["figures"][name] for r in runs if r["figures"][name] is not None]
    figure: dict[str, Any] = {
        "value": float(np.mean(values)) if values else None,
        "runs": values,
        "interval_over_runs": interval_over_runs(values),
    }
    if name in PER_REQUEST:
        pooled = [v for r in runs for v in r["samples"][name]]
        figure |= {"requests": len(pooled), "interval_over_requests": median_interval(pooled)}
    return figure


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _distinct(lines: Any) -> list[str]:
    return list(dict.fromkeys(lines))
