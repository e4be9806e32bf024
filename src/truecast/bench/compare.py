"""Two load tests of the same prompts: ratios of their rates and delays at each concurrency, with intervals over runs.

All ratios are B over A. The unit of sampling is the run: requests of one run share its batch, so they are no independent
draws of what the next run would give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from truecast.errors import InputError
from truecast.statistics.equivalence import TOST_LEVEL, detectable, margin_in_reach, smallest_margin
from truecast.statistics.runs import Ratio, ratio_of_runs

SCHEMA = "truecast.bench/1"
COMPARED = ("stream", "stream_e2e", "aggregate", "ttft", "ttft_answer")
"""Figures of a run that are compared; what each means stands in the document's ``definitions``."""

CLAIMED = ("stream", "aggregate")
"""Figures that a margin is about."""

_SAME = ("prompts.sha256", "sampling", "requests", "duration")
"""What has to be the same on both sides; a file of prompts may have another name."""

MOST_STREAMS = 10**9
AGAIN = "give the bench.json that `truecast bench` wrote"


@dataclass(frozen=True, slots=True)
class Load:
    """A load test. ``where``: the file. ``rates``: concurrency -> figure -> its value in each run (positive)."""

    where: str
    document: Mapping[str, Any]
    rates: Mapping[int, Mapping[str, tuple[float, ...]]]


def parse_bench(document: Mapping[str, Any], where: str) -> Load:
    """A document of ``truecast bench``. Raises: InputError naming the field that is missing or senseless."""
    if document.get("schema") != SCHEMA:
        raise InputError(f"schema is not {SCHEMA}", where=where, fix=AGAIN)
    if not isinstance(field_of(document, "prompts.sha256"), str):
        raise _bad("is no text", where, "prompts.sha256")
    rates: dict[int, dict[str, tuple[float, ...]]] = {}
    for i, level in enumerate(_entries(document, "levels", where, "levels")):
        at = f"levels[{i}]"
        concurrency = level.get("concurrency")
        if type(concurrency) is not int or concurrency < 1 or concurrency > MOST_STREAMS or concurrency in rates:
            raise _bad("is no whole number of at least 1, or came before", where, f"{at}.concurrency")
        runs = [
            _figures(run, where, f"{at}.runs[{j}]")
            for j, run in enumerate(_entries(level, "runs", where, f"{at}.runs"))
        ]
        rates[concurrency] = {
            name: tuple(float(run[name]) for run in runs) for name in COMPARED if all(name in run for run in runs)
        }
    return Load(where, document, rates)


def compare_benches(a: Load, b: Load, margin: float | None = None) -> dict[str, Any]:
    """Compare two load tests. ``margin``: rates within a factor of 1 + margin either way count as equivalent.

    Returns the part of ``truecast.compare/1`` that docs/compare.md lists.
    Raises: InputError where prompts, sampling or length of the runs differ, or no concurrency was measured on both sides.
    """
    for key in _SAME:
        one, other = field_of(a.document, key), field_of(b.document, key)
        if one != other:
            raise InputError(
                f"{key} differ: {one!r:.80} against {other!r:.80}",
                where=f"{a.where} and {b.where}",
                fix="run both with the same prompts and options",
            )
    shared = sorted(a.rates.keys() & b.rates.keys())
    if not shared:
        raise InputError("no concurrency was measured in both", where=f"{a.where} and {b.where}")
    levels = [_level(concurrency, a, b) for concurrency in shared]
    return {
        "kind": "bench",
        "a": _side(a),
        "b": _side(b),
        "unit": "run",
        "levels": levels,
        "equivalence": _equivalence(levels, margin),
        "warnings": list(_warnings(a, b, levels)),
    }


def field_of(document: Mapping[str, Any], path: str) -> Any:
    """The entry at a dotted path; ``None`` where there is none."""
    found: Any = document
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _level(concurrency: int, a: Load, b: Load) -> dict[str, Any]:
    one, other = a.rates[concurrency], b.rates[concurrency]
    return {
        "concurrency": concurrency,
        "figures": {n: _compared(one[n], other[n]) for n in COMPARED if n in one and n in other},
    }


def _compared(a: tuple[float, ...], b: tuple[float, ...]) -> dict[str, Any]:
    """``detectable`` and margins are relative: 0.05 is a factor of 1.05 or 1 / 1.05."""
    ratio = ratio_of_runs(a, b)
    interval = ratio.interval()
    return {
        "a": math.fsum(a) / len(a),
        "b": math.fsum(b) / len(b),
        "runs": [len(a), len(b)],
        "ratio": ratio.value,
        "interval": None if interval is None else list(interval),
        "excludes_one": None if interval is None else not interval[0] <= 1 <= interval[1],
        **_power(ratio),
    }


def _power(ratio: Ratio) -> dict[str, float | None]:
    if ratio.log is None:
        return {"smallest_margin": None, "detectable": None, "margin_in_reach": None}
    return {
        "smallest_margin": _relative(smallest_margin(ratio.log.interval(TOST_LEVEL))),
        "detectable": _relative(detectable(ratio.log)),
        "margin_in_reach": _relative(margin_in_reach(ratio.log)),
    }


def _relative(log: float) -> float:
    return math.expm1(min(log, 600.0))


def _equivalence(levels: list[dict[str, Any]], margin: float | None) -> dict[str, Any]:
    """Shown where it is for each of ``CLAIMED`` at each concurrency."""
    margins = [
        level["figures"][name]["smallest_margin"] for level in levels for name in CLAIMED if name in level["figures"]
    ]
    least = None if not margins or None in margins else max(margins)
    shown = None if margin is None else least is not None and least < margin
    return {"margin": margin, "shown": shown, "smallest_margin": least, "figures": list(CLAIMED)}


def _side(load: Load) -> dict[str, Any]:
    server = load.document.get("server")
    return {
        "file": load.where,
        "server": server if isinstance(server, dict) else {},
        "replicas": load.document.get("replicas", 1),
        "sound": load.document.get("sound") is True,
        "complete": load.document.get("complete") is True,
    }


def _warnings(a: Load, b: Load, levels: list[dict[str, Any]]) -> Iterator[str]:
    for name, load in (("A", a), ("B", b)):
        if load.document.get("sound") is not True:
            yield f"{name} is not sound: its own report says why its figures do not stand"
        if load.document.get("complete") is not True:
            yield f"{name} was stopped before its last run"
    if left := sorted(a.rates.keys() ^ b.rates.keys()):
        yield f"measured on one side only, left out: concurrency {', '.join(map(str, left))}"
    if a.document.get("replicas", 1) != b.document.get("replicas", 1):
        yield "the numbers of replicas differ"
    if (one := _caches(a)) != (other := _caches(b)):
        yield f"the prefix cache before a run: A {', '.join(one)}, B {', '.join(other)}"
    if field_of(a.document, "server.per_chunk") != field_of(b.document, "server.per_chunk"):
        yield "only one server counted the tokens of each chunk: the other's are spread evenly, which shifts `stream`"
    if any(f["interval"] is None for level in levels for f in level["figures"].values()):
        yield "one run on each side: no interval, because the spread between runs cannot be seen"


def _caches(load: Load) -> list[str]:
    """What was done with the prefix cache before the runs, each once."""
    return sorted({str(field_of(run, "cache.before")) for level in load.document["levels"] for run in level["runs"]})


def _figures(run: Mapping[str, Any], where: str, place: str) -> dict[str, float]:
    figures = run.get("figures")
    if not isinstance(figures, dict):
        raise _bad("is no object", where, f"{place}.figures")
    found = {name: figures[name] for name in COMPARED if figures.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
            raise _bad("is no positive number", where, f"{place}.figures.{name}")
    return found


def _entries(parent: Mapping[str, Any], key: str, where: str, place: str) -> list[dict[str, Any]]:
    entries = parent.get(key)
    if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) for e in entries):
        raise _bad("is no list of objects", where, place)
    return entries


def _bad(problem: str, where: str, place: str) -> InputError:
    return InputError(f"{place} {problem}", where=where, fix=AGAIN)
