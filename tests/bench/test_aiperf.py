from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.conftest import Serve, write_prompts
from tests.bench.made import doubts, run_of
from truecast.bench.aiperf import Load, configuration, environment, find_aiperf, last_error, version_of, workers
from truecast.bench.bench import bench
from truecast.bench.document import Options
from truecast.bench.figures import decode_speed
from truecast.bench.stream import ANSWER, REASONING, read_requests
from truecast.errors import InputError

RECORDED = Path(__file__).with_name("aiperf_raw.jsonl")


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


def test_27_nothing_is_tokenised_in_the_event_loop(tmp_path: Path) -> None:
    config = configuration(Load("http://a", "m", 20, 5, None), tmp_path / "in", tmp_path / "tok", tmp_path)["benchmark"]
    assert config["endpoint"]["useServerTokenCount"] is True
    assert config["tokenizer"] == {"name": str(tmp_path / "tok")}, "the empty one"


def test_the_key_is_sent_and_the_hub_is_not_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    endpoint = configuration(Load("http://a", "m", 1, 5, None, "k"), tmp_path, tmp_path, tmp_path)["benchmark"][
        "endpoint"
    ]
    assert endpoint["headers"] == {"authorization": "Bearer k"}
    assert "HF_HUB_OFFLINE" not in environment(tmp_path)


def test_what_aiperf_leaves_behind_goes_with_its_folder() -> None:
    """Unless the paths of its sockets there were longer than a system takes."""
    assert environment(Path("/tmp/truecast-bench-abcdefgh"))["TMPDIR"] == "/tmp/truecast-bench-abcdefgh"
    long = Path("/tmp/" + "x" * 60)
    assert environment(long).get("TMPDIR") != str(long)


@pytest.mark.parametrize(
    ("streams", "cores", "processes"), [(1, 16, 1), (20, 16, 1), (50, 16, 2), (200, 16, 8), (1000, 16, 14), (200, 2, 1)]
)
def test_few_processes_send_few_streams(streams: int, cores: int, processes: int) -> None:
    assert workers(streams, cores) == processes


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 0.13.4", None),
        ("echo aiperf 0.13.0", None),
        ("echo 0.12.0", "is AIPerf 0.12.0; only the records of 0.13 are known"),
        ("echo 1.13.0", "is AIPerf 1.13.0"),
        ("echo no module >&2; exit 1", "is no AIPerf that runs: --version says no module"),
        (None, "cannot be run"),
    ],
)
def test_only_the_version_whose_records_are_known(tmp_path: Path, script: str | None, words: str | None) -> None:
    program = tmp_path / "aiperf"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    if words is None:
        assert version_of(str(program)).startswith("0.13.")
        return
    with pytest.raises(InputError, match=words) as error:
        version_of(str(program))
    assert "pip install 'truecast[bench]'" in str(error.value)


def test_what_a_log_says(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("INFO fine\n╭─ Error Running AIPerf System ─╮\n│ 1 validation error for X │\n│ a.b │\n")
    assert last_error(log) == "1 validation error for X a.b"
    log.write_text("")
    assert last_error(log) == "it says nothing"


def test_a_recorded_export() -> None:
    """aiperf_raw.jsonl: AIPerf 0.13.0, 2 streams, on a busy machine, against timed_server.py (ttft 0.3 s, 10 ms a token,
    chunks of 1 to 8 tokens, half of 20 tokens reasoning, each fifth request a 500).
    """
    requests = list(read_requests(RECORDED))
    assert [r.warmup for r in requests] == [True] * 4 + [False] * 4
    assert [r.error for r in requests] == [None] * 4 + ["500: worker died"] + [None] * 3
    assert [r.tokens.tolist() for r in requests[5:]] == [[1, 4, 8, 2, 1, 4], [6, 7, 3, 2, 2], [3, 5, 4, 8]]
    assert {(r.output, r.prompt, r.reasoning, r.finish) for r in requests if r.error is None} == {(20, 9, 10, "stop")}
    assert requests[7].channels.tolist() == [REASONING] * 3 + [ANSWER]
    raw = json.loads(RECORDED.read_text().splitlines()[7])
    at = [r["perf_ns"] for r in raw["responses"] if "_content" in str(r) or "wo rd" in str(r)]
    assert len(at) == 4
    assert decode_speed(requests[7]) == pytest.approx(17 / (at[-1] - at[0]) * 1e9, rel=1e-5)
    assert requests[7].times[0] - requests[7].sent == pytest.approx((at[0] - raw["start_perf_ns"]) / 1e9, abs=1e-6)
    words = doubts(run_of(requests, 2), 2)
    assert "1 of 8 requests failed, most with: 500: worker died" in words
    assert "requests left more than 50 ms late" in words


@pytest.mark.skipif(not installed(), reason="AIPerf is not installed: pip install 'truecast[bench]'")
def test_the_real_one(serve: Serve, tmp_path: Path) -> None:
    """Slow (AIPerf takes ten seconds to start). 110 streams: HTTP clients often have a limit of 100 connections.

    The server gives no answer before all have come, and the first one ends only when a measured request has.
    """
    streams = 110
    server = serve(
        ttft=0.3,
        interval=0.01,
        tokens=60,
        chunk=[5, 5],
        reasoning=0.5,
        fail_every=9,
        acceptance=2.45,
        gather=streams,
        hold_first=2 * streams + 1,
    )
    options = Options(levels=[streams], requests=230, runs=1, sampling={"temperature": 0.6, "max_tokens": 500})
    out = tmp_path / "out"
    document = bench(server.url, write_prompts(tmp_path, 500), options, out, ["truecast", "bench"])
    (level,) = document["levels"]
    figures = {name: figure["value"] for name, figure in level["figures"].items()}
    log = server.log()
    assert server.page("/timed/state")["peak"] == streams, "all streams are open, and no more"
    assert log[0]["ended"] > log[2 * streams]["arrived"], "the warm-up is not drained"
    assert len({s["prompt"] for s in log}) == len(log) == 450, "each prompt once, verbatim"
    assert (figures["output_tokens"], figures["tokens_per_chunk"], figures["reasoning_share"]) == (60, 5, 0.5)
    assert level["acceptance_length"] == 2.45
    (errors,) = [r["requests"]["errors"] for r in level["runs"]]
    assert errors == {"500: worker died": 50}
    assert not document["sound"]
    lines = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert sum(line["warmup"] for line in lines) == 2 * streams
