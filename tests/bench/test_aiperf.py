from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from tests.bench.conftest import Serve, write_prompts
from truecast.bench.aiperf import Load, configuration, environment, find_aiperf, last_error
from truecast.bench.bench import bench
from truecast.bench.document import Options
from truecast.errors import InputError


def installed() -> bool:
    try:
        find_aiperf()
    except InputError:
        return False
    return True


def test_the_measured_phase_takes_the_streams_over(tmp_path: Path) -> None:
    load = Load("http://a", "m", 20, None, 60.0)
    phases = configuration(load, tmp_path / "in", tmp_path / "tok", tmp_path)["benchmark"]["phases"]
    warmup, measured = phases
    assert warmup["requests"] == 40
    assert measured["seamless"] and measured["duration"] == 60
    assert warmup["concurrency"] == measured["concurrency"] == 20
    assert warmup["type"] == "constant", "a phase of type concurrency takes a core to look for free streams"


def test_the_key_is_sent_and_the_hub_is_not_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    endpoint = configuration(Load("http://a", "m", 1, 5, None, "k"), tmp_path, tmp_path, tmp_path)["benchmark"][
        "endpoint"
    ]
    assert endpoint["headers"] == {"authorization": "Bearer k"}
    assert "HF_HUB_OFFLINE" not in environment()


def test_what_a_log_says(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("INFO fine\n╭─ Error Running AIPerf System ─╮\n│ 1 validation error for X │\n│ a.b │\n")
    assert last_error(log) == "1 validation error for X a.b"
    log.write_text("")
    assert last_error(log) == "it says nothing"


@pytest.mark.skipif(not installed(), reason="AIPerf is not installed: pip install 'truecast[bench]'")
def test_the_real_one(serve: Serve, tmp_path: Path) -> None:
    """Slow (AIPerf takes ten seconds to start): that the real records are what the stand-in writes."""
    server = serve(ttft=0.3, interval=0.01, tokens=60, chunk=[1, 8], reasoning=0.5, fail_every=9, acceptance=2.45)
    options = Options(levels=[4], requests=24, runs=1, sampling={"temperature": 0.6, "max_tokens": 500})
    out = tmp_path / "out"
    document = bench(server.url, write_prompts(tmp_path), options, out, ["truecast", "bench"])
    (level,) = document["levels"]
    figures = {name: figure["value"] for name, figure in level["figures"].items()}
    log = server.log()
    assert server.page("/timed/state")["peak"] == 4
    assert len({s["prompt"] for s in log}) == len(log) == 32, "each prompt once, verbatim"
    assert figures["stream"] == pytest.approx(server.speed(), rel=0.05)
    assert figures["output_tokens"] == 60
    assert figures["reasoning_share"] == pytest.approx(
        sum(n for s in log for _, n, c in s["chunks"] if c == "reasoning")
        / (60 * sum(s["outcome"] == "ok" for s in log)),
        abs=0.03,
    )
    assert figures["ttft"] == pytest.approx(statistics.median([server.first_token()]), abs=0.15)
    assert level["acceptance_length"] == 2.45
    (errors,) = [r["requests"]["errors"] for r in level["runs"]]
    assert errors == {"500: worker died": 3}
    assert not document["sound"]
    lines = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert sum(line["warmup"] for line in lines) == 8
