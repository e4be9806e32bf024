"""The table, from the records alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDS = {
    "bench": "bench/bench.json",
    "eval": "eval/dialogues/eval.json",
    "served": "served/audit.json",
    "exact": "exact/audit.json",
}
"""Where a format's folder has them."""
SPEEDS = {
    "stream": "tok/s per stream, median",
    "aggregate": "aggregate tok/s",
    "residual": "aggregate / (streams x mean)",
    "ttft": "TTFT, s",
}


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Those that a format's folder has."""
    return {
        name: json.loads((folder / path).read_bytes()) for name, path in RECORDS.items() if (folder / path).exists()
    }


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown, a column a format."""
    names = list(found)
    rows = [("", *names), ("---", *("---" for _ in names)), *_rows([found[name] for name in names])]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _rows(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    levels = [{x["concurrency"]: x["figures"] for x in one.get("bench", {}).get("levels", ())} for one in found]
    for streams in sorted({c for level in levels for c in level}):
        for key, says in SPEEDS.items():
            figures = [level.get(streams, {}).get(key) for level in levels]
            yield f"{says}, {streams} streams", *(_figure(figure, key) for figure in figures)
    yield "served KL to native, nats/token", *(_kl(one.get("served"), "kl") for one in found)
    yield "its noise floor", *(_kl(one.get("served"), "floor") for one in found)
    yield "excess over the floor", *(_kl(one.get("served"), "excess") for one in found)
    yield "exact KL of the weights", *(_kl(one.get("exact"), "kl") for one in found)
    yield "held-out dialogues, 8 answers each", *(_score(one.get("eval")) for one in found)


def _figure(figure: Mapping[str, Any] | None, key: str) -> str:
    if figure is None or figure["value"] is None:
        return "-"
    digits = {"ttft": 3, "residual": 3}.get(key, 1)
    text, interval = f"{figure['value']:.{digits}f}", figure["interval_over_runs"]
    return text if interval is None else f"{text} ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"


def _kl(document: Mapping[str, Any] | None, key: str) -> str:
    figure = (document or {}).get(key)
    if not isinstance(figure, dict) or figure.get("mean") is None:
        return "-"
    low, high = figure["interval"] or (None, None)
    return f"{figure['mean']:.5f}" + ("" if low is None else f" ({low:.5f} to {high:.5f})")


def _score(document: Mapping[str, Any] | None) -> str:
    if document is None:
        return "-"
    score = document["scores"]
    low, high = score["interval"]
    return f"{score['score']:.2%} ({low:.2%} to {high:.2%})"
