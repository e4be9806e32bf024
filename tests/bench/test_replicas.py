from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from truecast.bench.replicas import against_one, curve_of
from truecast.errors import InputError

SAMPLING = {"temperature": 1.0}


def one_replica(path: Path, **changes: Any) -> Path:
    levels = [{"concurrency": c, "runs": [{"figures": {"stream": v}}]} for c, v in ((20, 43.6), (50, 34.1))]
    document = {
        "schema": "truecast.bench/1",
        "sound": True,
        "prompts": {"sha256": "ab"},
        "sampling": SAMPLING,
        "replicas": 1,
        "levels": levels,
    }
    path.write_text(json.dumps(document | changes))
    return path


def test_seed_003s_two_replicas_lose_a_seventh(tmp_path: Path) -> None:
    """35.7 tok/s at 25 streams a replica, of one replica's 43.6 at 20 and 34.1 at 50 (facts/eval_bench.md 6.4)."""
    against = against_one(35.7, 50, 2, curve_of(one_replica(tmp_path / "one.json"), "ab", SAMPLING))
    assert against["at"] == 25
    assert against["expected"] == pytest.approx(41.6, abs=0.1)
    assert against["ratio"] == pytest.approx(0.858, abs=0.002)


def test_an_odd_level_is_half_a_stream_more_a_replica() -> None:
    against = against_one(30.0, 41, 2, {20: 40.0, 21: 38.0})
    assert against["at"] == 20.5
    assert against["expected"] == pytest.approx(2 / (1 / 40 + 1 / 38))


def test_nothing_is_said_beyond_the_curve() -> None:
    against = against_one(35.7, 20, 2, {20: 43.6, 50: 34.1})
    assert against["ratio"] is None
    assert "not around 10" in against["reason"]


REFUSED: dict[str, dict[str, Any]] = {
    r"schema is not": {"schema": "truecast.audit/1"},
    r"has other prompts": {"prompts": {"sha256": "cd"}},
    r"has other prompts or sampling": {"sampling": {}},
    r"do not stand": {"sound": False},
    r"more than one replica": {"replicas": 2},
    r"levels is no list": {"levels": []},
    r"levels\[0\]\.concurrency": {"levels": [{"concurrency": 10**400, "runs": [{"figures": {"stream": 1.0}}]}]},
    r"stream is no positive": {"levels": [{"concurrency": 1, "runs": [{"figures": {"stream": float("nan")}}]}]},
    r"has no speed": {"levels": [{"concurrency": 1, "runs": [{"figures": {"ttft": 1.0}}]}]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_curve_that_is_no_measure_for_this_run(tmp_path: Path, message: str) -> None:
    path = one_replica(tmp_path / "one.json", **REFUSED[message])
    with pytest.raises(InputError, match=message):
        curve_of(path, "ab", SAMPLING)


@pytest.mark.parametrize("text", [None, "[" * 100_000, "[]"])
def test_no_document(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "one.json").write_text(text)
    with pytest.raises(InputError, match=r"cannot be read|is no bench\.json"):
        curve_of(tmp_path / "one.json", "ab", SAMPLING)
