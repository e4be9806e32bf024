"""nano-K3 in a real serve-reference process: clean it passes, and each planted fault is found by the check for it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process import Process
from tests.serve.smoke import faulty
from tests.serve.smoke.faulty import Exchange, Proxy, proxy, switch
from truecast.serve.smoke import SmokeReport, canaries, smoke
from truecast.serve.smoke.smoke import CHECKS

CHECKPOINT = Path(__file__).parents[3] / "examples" / "nano_k3" / "checkpoint"
SEED = 1
CONCURRENT = 3
"""Not twelve: nano-K3 makes 30 tokens a second on one core, all requests together."""

FAULTS: dict[str, tuple[Callable[[Exchange], None], ...]] = {
    "health": (faulty.unhealthy,),
    "model-name": (faulty.any_name,),
    "arithmetic": (faulty.wrong_sums, faulty.empty_content, faulty.answer_swallowed, faulty.broken_generation,
                   faulty.hanging_generation, faulty.trickling_generation),
    "channels": (faulty.thinking_in_content, faulty.markers_in_content, faulty.thinking_lost),
    "usage": (faulty.no_usage,),
    "truncation": (faulty.cut_answer_says_stop, faulty.limit_dropped, faulty.unfinished_thinking_in_content),
    "determinism": (faulty.never_twice_the_same,),
    "streaming": (faulty.chunk_lost, faulty.chunk_twice, faulty.chunks_swapped, faulty.no_usage_in_stream, faulty.no_done),
    "tools": (faulty.arguments_cut, faulty.calls_only_whole, faulty.text_dropped_beside_tools, faulty.call_says_stop,
              faulty.numbers_as_text),
    "efforts": (faulty.unknown_effort_taken, faulty.max_effort_refused, faulty.effort_ignored),
    "identifiers": (faulty.one_character_changed, faulty.one_corrupted_in_a_crowd),
    "leaks": (faulty.anothers_text, faulty.swapped_texts),
    "logprobs": (faulty.positive_logprob, faulty.nan_logprob, faulty.unlikely_token, faulty.inflated_top),
    "bad-requests": (faulty.bad_is_server_error, faulty.bad_hangs),
    "reference": (faulty.another_model,),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The command itself, on the CPU."""
    arguments = ("serve-reference", CHECKPOINT, "--port", 0, "--device", "cpu", "--json")
    with Process(
        [sys.executable, "-m", "truecast", *map(str, arguments)], stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        ready = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        try:
            yield ready["url"].removesuffix("/v1")
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def crowd() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canaries, "CONCURRENCY", CONCURRENT)
        yield


@pytest.fixture(scope="module")
def clean(server: str, crowd: None) -> Iterator[tuple[Proxy, SmokeReport]]:
    """The proxy after one clean run, whose answers it keeps."""
    with proxy(server) as told:
        report = _run(told, 300, str(CHECKPOINT))
        told.replay = True
        yield told, report


def _run(told: Proxy, seconds: float = 60, reference: str | None = None) -> SmokeReport:
    return smoke(told.url, reference=reference, seconds=seconds, seed=SEED)


def test_a_sound_server_passes_every_check(clean: tuple[Proxy, SmokeReport]) -> None:
    report = clean[1]
    assert [(f.id, f.status) for f in report.findings if f.status != "PASS"] == []
    assert sorted(f.id for f in report.findings) == sorted(CHECKS)
    assert report.ok
    assert report.model == "checkpoint"


@pytest.mark.parametrize(
    ("check", "fault"),
    [(check, fault) for check, faults in FAULTS.items() for fault in faults],
    ids=[fault.__name__ for faults in FAULTS.values() for fault in faults],
)
def test_a_fault_is_found_by_its_check(
    clean: tuple[Proxy, SmokeReport], check: str, fault: Callable[[Exchange], None]
) -> None:
    told = clean[0]
    switch(told, fault)
    slow = fault in (faulty.hanging_generation, faulty.trickling_generation, faulty.bad_hangs)
    report = _run(told, 1.0 if slow else 60, str(CHECKPOINT) if check == "reference" else None)
    assert [f.id for f in report.findings if f.status == "FAIL"] == [check], report.findings
    assert not report.ok
    found = next(f for f in report.findings if f.status == "FAIL")
    assert found.evidence
    assert found.remedy


def test_an_interrupt_among_others_ends_it(
    clean: tuple[Proxy, SmokeReport], command: Callable[..., list[str]], environment: dict[str, str]
) -> None:
    reached = threading.Event()

    def stall(exchange: Exchange) -> None:
        if exchange.identifier:
            reached.set()
            time.sleep(5)

    switch(clean[0], None)
    clean[0].before = stall
    with Process(command("smoke", clean[0].url), env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert reached.wait(30)
        process.send_signal(signal.SIGINT)
        assert process.wait(4) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_another_answer_in_a_crowd_is_a_warning(clean: tuple[Proxy, SmokeReport]) -> None:
    switch(clean[0], faulty.other_words_in_a_crowd)
    report = _run(clean[0])
    assert report.ok
    assert [f.id for f in report.findings if f.status == "WARN"] == ["batch-variance"]


def test_cut_thinking_is_explained_with_a_budget(clean: tuple[Proxy, SmokeReport]) -> None:
    found = {f.id: f for f in clean[1].findings}["truncation"]
    assert "not a broken model" in found.evidence
    assert "took 51 tokens" in found.evidence
    assert "max_tokens of 512 or more" in found.evidence
