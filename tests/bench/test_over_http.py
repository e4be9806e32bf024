"""What a load does to a server, over real HTTP, by the server's own log; nothing here depends on how fast it went.

The client is the stand-in of stand_in.py; test_aiperf.py asks the same of the real one, where it is installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import Serve, write_prompts

Measured = Callable[..., dict[str, Any]]
QUICK = {"ttft": 0.002, "interval": 0.0002, "tokens": 20}


def run_of(document: dict[str, Any]) -> dict[str, Any]:
    return document["levels"][0]["runs"][0]


def value(document: dict[str, Any], figure: str) -> float:
    return document["levels"][0]["figures"][figure]["value"]


def remarks(document: dict[str, Any]) -> str:
    return "\n".join(document["levels"][0]["remarks"])


def test_01_to_04_the_cache_is_flushed_before_each_run_or_its_state_is_told(
    serve: Serve, measured: Measured, tmp_path: Path
) -> None:
    few = write_prompts(tmp_path, 6)
    server = serve(**QUICK, warm_ttft=0.001)
    document = measured(server, 2, few, requests=6, runs=2)
    assert server.page("/timed/state")["flushed"] == 2
    assert [r["cache"]["before"] for r in document["levels"][0]["runs"]] == ["flushed", "flushed"]
    server = serve(**QUICK, warm_ttft=0.001)
    warm = measured(server, 2, few, requests=6, runs=1, keep_cache=True)
    assert server.page("/timed/state")["flushed"] == 0
    assert run_of(warm)["cache"]["before"] == "kept"
    assert "of the prompt tokens came from the prefix cache" in remarks(warm)


def test_03_a_server_that_cannot_flush_is_recorded(serve: Serve, measured: Measured) -> None:
    assert run_of(measured(serve(**QUICK, engine="plain"), 2))["cache"]["before"] == "cannot be flushed"


@pytest.mark.parametrize(("usage", "counted"), [("continuous", True), ("final", False), ("refuse", False)])
def test_05_chunks_of_several_tokens(serve: Serve, measured: Measured, usage: str, counted: bool) -> None:
    document = measured(serve(**{**QUICK, "chunk": [5, 5], "reasoning": 0.5, "usage": usage}), 2)
    assert value(document, "output_tokens") == 20
    assert value(document, "tokens_per_chunk") == 5
    assert value(document, "reasoning_share") == 0.5
    assert ("does not count tokens by chunk" in remarks(document)) != counted


def test_08_a_tool_call_is_one_chunk_of_all_its_tokens(serve: Serve, measured: Measured) -> None:
    document = measured(serve(**QUICK, tool=True), 2)
    assert value(document, "output_tokens") == 20
    assert document["levels"][0]["figures"]["stream"]["value"] is None
    assert "came all at once" in remarks(document)
    assert run_of(document)["requests"]["finish"].keys() == {"tool_calls"}


def test_19_the_concurrency_is_held_and_the_warm_up_is_not_drained(serve: Serve, measured: Measured) -> None:
    """The first request of the warm-up ends only when the first measured one has come (2 x 6 of warm-up before it)."""
    server = serve(**QUICK, gather=6, hold_first=13)
    measured(server, 6, requests=12)
    assert server.page("/timed/state")["peak"] == 6
    log = server.log()
    assert log[0]["ended"] > log[12]["arrived"]
    assert {s["outcome"] for s in log} == {"ok"}


def test_22_the_files_prompts_are_sent_and_no_others(serve: Serve, measured: Measured, tmp_path: Path) -> None:
    server = serve(**QUICK)
    file = write_prompts(tmp_path, 100)
    measured(server, 2, file, requests=6, runs=2)
    sent = [json.loads(s["prompt"])[0]["content"] for s in server.log()]
    assert sorted(sent) == sorted(json.loads(line)["prompt"] for line in file.read_text().splitlines()[:20])


def test_25_cut_and_empty_outputs_are_told(serve: Serve, measured: Measured) -> None:
    cut = measured(serve(**QUICK), 2, sampling={"max_tokens": 18})
    assert run_of(cut)["requests"]["finish"].keys() == {"length"}
    assert value(cut, "output_tokens") == 18
    assert "were cut at the token limit" in remarks(cut)
    empty = measured(serve(**QUICK, empty_every=2), 2, requests=18)
    assert "answers were empty" in remarks(empty)


def test_32_settings_are_the_servers_own_words(serve: Serve, measured: Measured) -> None:
    server = measured(serve(**QUICK), 2)["server"]
    assert (server["engine"], server["version"]) == ("sglang", "0.5.20")
    assert server["arguments"]["ep_size"] == 4


def test_33_a_level_that_leaves_replicas_idle_is_told(serve: Serve, measured: Measured) -> None:
    assert "leave some of 2 replicas idle" in remarks(measured(serve(**QUICK), 1, replicas=2, requests=6))
