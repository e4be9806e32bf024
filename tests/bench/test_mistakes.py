"""The mistakes of docs/bench.md that a client can make, each against a server that provokes it; by its number there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import Serve, write_prompts

Measured = Callable[..., dict[str, Any]]


def level_of(document: dict[str, Any]) -> dict[str, Any]:
    return document["levels"][0]


def value(document: dict[str, Any], figure: str) -> float:
    return level_of(document)["figures"][figure]["value"]


def remarked(document: dict[str, Any], words: str) -> bool:
    return any(words in line for line in level_of(document)["remarks"])


def faulted(document: dict[str, Any], words: str) -> bool:
    return any(words in line for line in level_of(document)["faults"])


def test_01_to_04_warm_cache_is_flushed_or_told(serve: Serve, measured: Measured, tmp_path: Path) -> None:
    server = serve(ttft=0.15, warm_ttft=0.01, interval=0.001, tokens=10)
    few = write_prompts(tmp_path, 20)
    cold = level_of(measured(server, 4, few, requests=12, runs=2))["figures"]["ttft"]["runs"]
    assert min(cold) > 0.14, "every run begins with an empty cache"
    assert server.page("/timed/state")["flushed"] == 2
    warm = measured(server, 4, few, requests=12, keep_cache=True)
    assert value(warm, "ttft") < 0.1
    assert level_of(warm)["runs"][0]["cache"]["before"] == "kept"
    assert remarked(warm, "of the prompt tokens came from the prefix cache")


def test_03_a_server_that_cannot_flush_is_recorded(serve: Serve, measured: Measured) -> None:
    document = measured(serve(engine="plain", ttft=0.02, interval=0.001, tokens=20), 2)
    assert level_of(document)["runs"][0]["cache"]["before"] == "cannot be flushed"


@pytest.mark.parametrize("usage", ["continuous", "final"])
def test_05_06_07_speculative_chunks_count_by_their_tokens(serve: Serve, measured: Measured, usage: str) -> None:
    server = serve(ttft=0.05, interval=0.003, tokens=100, chunk=[1, 8], usage=usage)
    document = measured(server, 6, requests=18)
    assert value(document, "stream") == pytest.approx(server.speed(), rel=0.15)
    assert value(document, "tokens_per_chunk") == pytest.approx(4.5, rel=0.15)
    truth = 6 * 100 / (0.05 + 100 * 0.003)
    assert value(document, "aggregate") == pytest.approx(truth, rel=0.1)
    assert remarked(document, "does not count tokens by chunk") == (usage == "final")


def test_08_buffered_tool_calls_have_no_speed_of_their_own(serve: Serve, measured: Measured) -> None:
    document = measured(serve(ttft=0.05, interval=0.002, tokens=100, tool=True), 4, requests=16)
    assert level_of(document)["figures"]["stream"]["value"] is None
    assert value(document, "output_tokens") == 100
    assert value(document, "stream_e2e") == pytest.approx(100 / 0.25, rel=0.15)
    assert value(document, "aggregate") == pytest.approx(4 * 100 / 0.25, rel=0.3)
    assert remarked(document, "came all at once")


def test_09_10_tokens_are_the_servers(serve: Serve, measured: Measured) -> None:
    """The server's text has three words and a run of spaces per token: any re-tokenisation would give another count."""
    document = measured(serve(ttft=0.02, interval=0.001, tokens=50), 2)
    assert value(document, "output_tokens") == 50


def test_11_ttft_is_not_part_of_the_decode_speed(serve: Serve, measured: Measured) -> None:
    document = measured(serve(ttft=0.25, interval=0.004, tokens=50), 2, requests=4)
    assert value(document, "stream") == pytest.approx(250, rel=0.25)
    assert value(document, "stream_e2e") == pytest.approx(50 / (0.25 + 49 * 0.004), rel=0.1)


def test_12_13_reasoning_has_a_first_token_and_counts_once(serve: Serve, measured: Measured) -> None:
    server = serve(ttft=0.1, interval=0.003, tokens=100, reasoning=0.6)
    document = measured(server, 4, requests=8)
    assert value(document, "ttft") == pytest.approx(server.first_token(), abs=0.02)
    assert value(document, "ttft_answer") == pytest.approx(0.1 + 60 * 0.003, abs=0.08)
    assert value(document, "reasoning_share") == pytest.approx(0.6, abs=0.01)
    assert value(document, "stream") == pytest.approx(server.speed(), rel=0.15)


def test_13_reasoning_without_counts_by_chunk_comes_from_usage(serve: Serve, measured: Measured) -> None:
    document = measured(serve(ttft=0.05, interval=0.002, tokens=50, reasoning=0.6, usage="final"), 2)
    assert value(document, "reasoning_share") == pytest.approx(0.6, abs=0.01)


def test_14_the_queue_beyond_the_servers_slots_is_in_ttft(serve: Serve, measured: Measured) -> None:
    server = serve(ttft=0.05, interval=0.002, tokens=50, slots=4)
    document = measured(server, 8, requests=32)
    assert server.page("/timed/state")["peak"] == 4
    assert value(document, "ttft") == pytest.approx(0.05 + 0.15, rel=0.3), "one whole request waits before each"
    assert value(document, "residual_e2e") == pytest.approx(1, abs=0.08)


def test_15_to_18_the_start_is_outside_the_window(serve: Serve, measured: Measured) -> None:
    """The first requests meet a cold engine and come all at once: none of them is in a figure."""
    document = measured(serve(ttft=0.05, interval=0.002, tokens=50, cold=8, cold_ttft=0.5), 4, requests=12)
    assert value(document, "ttft_p99") < 0.3
    assert value(document, "stream_e2e") > 50 / 0.4


def test_18_an_engine_that_gets_faster_within_the_window_is_told(serve: Serve, measured: Measured) -> None:
    document = measured(serve(ttft=0.02, interval=0.002, tokens=50, cold=14, cold_ttft=0.2), 4, requests=20)
    assert remarked(document, "not steady")


def test_19_the_warm_up_keeps_to_the_concurrency(serve: Serve, measured: Measured) -> None:
    server = serve(ttft=0.05, interval=0.002, tokens=50)
    measured(server, 6)
    assert server.page("/timed/state")["peak"] == 6


def test_20_ramp_and_drain_are_outside_the_window(serve: Serve, measured: Measured) -> None:
    server = serve(ttft=0.05, interval=0.003, tokens=60, spread=0.9)
    document = measured(server, 6, requests=30)
    run = level_of(document)["runs"][0]
    assert run["in_flight"] == pytest.approx(6, rel=0.03)
    log = server.log()
    tokens = sum(n for s in log for at, n, _ in s["chunks"] if run["window"]["start"] <= at <= run["window"]["end"])
    assert value(document, "aggregate") == pytest.approx(tokens / run["window"]["seconds"], rel=0.02)
    wall = max(s["ended"] for s in log) - min(s["arrived"] for s in log)
    assert sum(n for s in log for _, n, _ in s["chunks"]) / wall < 0.97 * value(document, "aggregate"), (
        "drain is slower"
    )


def test_21_equal_prompts_are_told(serve: Serve, measured: Measured, tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"prompt": "the same"}\n' * 50)
    document = measured(serve(ttft=0.02, interval=0.001, tokens=20), 4, path)
    assert document["prompts"]["distinct"] == 1
    assert remarked(document, "1 distinct prompts for 4 streams")
    assert remarked(document, "were sent 20.0 times each")


def test_24_lengths_are_what_came_not_what_was_asked(serve: Serve, measured: Measured) -> None:
    document = measured(serve(ttft=0.02, interval=0.001, tokens=40), 2, sampling={"max_tokens": 1000})
    assert value(document, "output_tokens") == 40
    assert not remarked(document, "cut at the token limit")


def test_25_cut_and_empty_outputs_are_told(serve: Serve, measured: Measured) -> None:
    cut = measured(serve(ttft=0.02, interval=0.001, tokens=40), 2, sampling={"max_tokens": 30})
    assert remarked(cut, "were cut at the token limit")
    server = serve(ttft=0.02, interval=0.001, tokens=40, empty_every=3)
    empty = measured(server, 2, requests=18)
    assert remarked(empty, "answers were empty")
    assert value(empty, "stream") == pytest.approx(1000, rel=0.4), "an answer without a token has no speed"


def test_26_29_a_starved_client_does_not_stand(serve: Serve, measured: Measured, monkeypatch: Any) -> None:
    """The sending process stops for 0.1 s again and again, as one does that has no CPU."""
    monkeypatch.setenv("RECORDER_STALLS", "0.1")
    document = measured(serve(ttft=0.02, interval=0.001, tokens=30), 4, requests=12)
    assert faulted(document, "the client is saturated")
    assert not document["sound"]


def test_27_28_all_streams_are_open_at_the_server(serve: Serve, measured: Measured) -> None:
    server = serve(ttft=0.3, interval=0.01, tokens=10)
    document = measured(server, 130, requests=130)
    assert server.page("/timed/state")["peak"] == 130, "no limit of 100 connections"
    assert level_of(document)["runs"][0]["in_flight"] > 0.95 * 130


def test_30_percentiles_of_ttft_stand_beside_the_median(serve: Serve, measured: Measured) -> None:
    figures = level_of(measured(serve(ttft=0.05, interval=0.001, tokens=20, slots=2), 6, requests=24))["figures"]
    assert figures["ttft_p99"]["value"] > figures["ttft"]["value"]


def test_31_speed_of_a_stream_never_stands_alone(serve: Serve, measured: Measured) -> None:
    """Prefill that takes half of the time is not in the speed of a stream; the aggregate and the residual show it."""
    document = measured(serve(ttft=0.15, interval=0.003, tokens=51), 4, requests=8)
    assert value(document, "stream") == pytest.approx(333, rel=0.25)
    assert value(document, "residual") == pytest.approx(0.51, abs=0.12)


def test_32_settings_are_the_servers_own_words(serve: Serve, measured: Measured) -> None:
    server = measured(serve(ttft=0.02, interval=0.001, tokens=20), 2)["server"]
    assert (server["engine"], server["version"]) == ("sglang", "0.5.20")
    assert server["arguments"]["ep_size"] == 4


def test_33_a_level_that_leaves_replicas_idle_is_told(serve: Serve, measured: Measured) -> None:
    document = measured(serve(ttft=0.02, interval=0.001, tokens=20), 1, replicas=2, requests=6)
    assert remarked(document, "leave some of 2 replicas idle")
