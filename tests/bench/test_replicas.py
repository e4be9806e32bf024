from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from truecast.bench.replicas import against_one, curve_of
from truecast.errors import InputError


def one_replica(path: Path, **changes: Any) -> Path:
    levels = [{"concurrency": c, "figures": {"stream": {"value": v}}} for c, v in ((20, 43.6), (50, 34.1))]
    path.write_text(json.dumps({"schema": "truecast.bench/1", "levels": levels, **changes}))
    return path


def test_seed_003s_two_replicas_lose_a_seventh(tmp_path: Path) -> None:
    """35.7 tok/s at 25 streams a replica, of one replica's 43.6 at 20 and 34.1 at 50 (facts/eval_bench.md 6.4)."""
    against = against_one(35.7, 50, 2, curve_of(one_replica(tmp_path / "one.json")))
    assert against["at"] == 25
    assert against["expected"] == pytest.approx(41.6, abs=0.1)
    assert against["ratio"] == pytest.approx(0.858, abs=0.002)


def test_nothing_is_said_beyond_the_curve() -> None:
    against = against_one(35.7, 20, 2, {20: 43.6, 50: 34.1})
    assert against["ratio"] is None
    assert "not around 10" in against["reason"]


def test_another_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no bench\.json"):
        curve_of(one_replica(tmp_path / "one.json", schema="truecast.audit/1"))
    with pytest.raises(InputError, match="cannot be read"):
        curve_of(tmp_path / "none.json")
    with pytest.raises(InputError, match="has no speed"):
        curve_of(one_replica(tmp_path / "one.json", levels=[]))
