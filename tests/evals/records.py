"""Eval records made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from truecast.evals.record import Record, parse_record

Sample = dict[str, Any]


def sample(correct: Any, **changes: Any) -> Sample:
    base = {"correct": correct, "truncated": False, "empty": False, "error": None, "tokens": 900, "seed": 0}
    return {**base, **changes}


CUT = {"truncated": True}
FAILED = {"error": "connection reset"}


def document(
    problems: Sequence[Sequence[Sample]], clusters: Sequence[str] | None = None, /, **changes: Any
) -> dict[str, Any]:
    entries = [{"id": f"aime/{i}", "samples": list(samples)} for i, samples in enumerate(problems)]
    if clusters is not None:
        entries = [{**entry, "cluster": name} for entry, name in zip(entries, clusters, strict=True)]
    base = {
        "schema": "truecast.eval/1",
        "task": {"name": "aime26", "data": "5f1c"},
        "settings": {"temperature": 1.0, "max_tokens": 65536, "samples": 8},
        "server": {"model": "native"},
        "problems": entries,
    }
    return {**base, **changes}


def record(problems: Sequence[Sequence[Sample]], clusters: Sequence[str] | None = None, /, **changes: Any) -> Record:
    return parse_record(document(problems, clusters, **changes), str(changes.get("server", {}).get("model", "a.json")))
