"""The mistakes of docs/bench.md, by their numbers there: the right figure exactly, and what the mistake would give.

All on records with exact times (made.py): 4 streams, 11 tokens a request, the first after 1 s and then one each 0.1 s,
if a test does not say otherwise. What a client does to a server (flush, prompts, concurrency) is in test_over_http.py.
"""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from tests.bench.made import closed_loop, doubts, run_of, told
from truecast.bench.figures import decode_speed
from truecast.bench.stream import ANSWER, Request

N = 4


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-5)  # times are float seconds since 1970: good to 0.2 us


def figures(requests: list[Request], streams: int = N) -> dict[str, float]:
    return run_of(requests, streams)["figures"]


def first_tokens(requests: list[Request]) -> list[float]:
    return [float(r.times[0] - r.sent) for r in requests]


def test_the_plain_case() -> None:
    run = run_of(closed_loop(N, 16), N)
    assert run["window"]["seconds"] == exactly(8)
    assert run["in_flight"] == exactly(N)
    assert {k: round(v, 6) for k, v in run["figures"].items()} == {
        "stream": 10,
        "stream_e2e": 5.5,
        "aggregate": 22,
        "residual": 0.55,
        "residual_e2e": 1,
        "ttft": 1,
        "ttft_p99": 1,
        "ttft_answer": 1,
        "reasoning_share": 0,
        "output_tokens": 11,
        "tokens_per_chunk": 1,
    }
    assert doubts(run, N) == told(run, N) == ""


@pytest.mark.parametrize("from_request", [8, 14], ids=["1 all warm", "2 half of the run warm"])
def test_01_02_04_a_warm_cache_is_told(from_request: int) -> None:
    def warm(number: int) -> bool:
        return number >= from_request

    run = run_of(closed_loop(N, 12, ttft=lambda n: 0.1 if warm(n) else 1.0, cached=warm), N)
    share = (20 - from_request) / 12
    assert f"{share:.0%} of the prompt tokens came from the prefix cache" in told(run, N)
    assert run["cache"] == {"prompt_tokens": 120, "cached_tokens": round(120 * share)}
    cold = figures(closed_loop(N, 12))
    assert run["figures"]["aggregate"] > 1.2 * cold["aggregate"], "what would have been published"


@pytest.mark.parametrize("usage", ["continuous", "final"])
def test_05_06_07_speculative_chunks_count_by_their_tokens(usage: str) -> None:
    """Chunks of 4 tokens each 0.4 s, three in a request of 12."""
    requests = closed_loop(N, 12, tokens=12, chunk=4, usage=usage)
    value = figures(requests)
    assert value["stream"] == exactly(8 / 0.8)
    assert value["aggregate"] == exactly(N * 12 / 1.8)
    assert value["tokens_per_chunk"] == 4
    by_chunk = statistics.median((r.times.size - 1) / (r.times[-1] - r.times[0]) for r in requests)
    assert by_chunk == exactly(2.5), "a chunk taken for a token: the speed is a quarter"
    assert ("does not count tokens by chunk" in told(run_of(requests, N), N)) == (usage == "final")


def test_05_chunks_of_unequal_size_need_running_counts() -> None:
    """10 tokens in chunks of 8 and 2: the first chunk's 8 are not part of the decode speed; spread evenly 5 would be."""
    assert figures(closed_loop(N, 12, tokens=10, chunk=8))["stream"] == exactly(2 / 0.2)
    assert figures(closed_loop(N, 12, tokens=10, chunk=8, usage="final"))["stream"] == exactly(5 / 0.2)


def test_08_buffered_tool_calls_have_no_speed_of_their_own() -> None:
    requests = closed_loop(N, 12, tool=True)
    run = run_of(requests, N)
    assert run["figures"]["stream"] is None
    assert run["figures"]["stream_e2e"] == exactly(5.5)
    assert run["figures"]["aggregate"] == exactly(22)
    assert run["figures"]["output_tokens"] == 11
    assert sum(r.times.size for r in requests) == len(requests), "one chunk each: counted by chunks it would be a token"
    assert "came all at once" in told(run, N)


def test_09_10_tokens_are_the_servers() -> None:
    """The text has three words and a run of spaces for a token: tokenised again it would be 33, with BOS 44."""
    assert figures(closed_loop(N, 12))["output_tokens"] == 11


def test_11_ttft_is_not_part_of_the_decode_speed() -> None:
    requests = closed_loop(N, 12)
    assert figures(requests)["stream"] == exactly(10)
    assert 11 / float(requests[0].times[-1] - requests[0].sent) == exactly(5.5), "with the first token's wait"


def test_12_reasoning_has_a_first_token() -> None:
    value = figures(closed_loop(N, 12, reasoning=6))
    assert value["ttft"] == exactly(1.0)
    assert value["ttft_answer"] == exactly(1.6), "what a client gives that knows only content"


@pytest.mark.parametrize("usage", ["continuous", "final"])
def test_13_reasoning_counts_once(usage: str) -> None:
    requests = closed_loop(N, 12, reasoning=6, usage=usage)
    value = figures(requests)
    assert value["output_tokens"] == 11, "17 if the reasoning were added to the count that holds it"
    assert value["reasoning_share"] == exactly(6 / 11)
    assert value["stream"] == exactly(10)
    answer = [float(r.times[-1] - r.times[r.channels == ANSWER][0]) for r in requests]
    assert 11 / statistics.median(answer) == exactly(27.5), "all tokens over the answer's time"


def test_14_the_queue_beyond_the_servers_slots_is_in_ttft() -> None:
    """8 streams at a server that runs 4: each request waits for one of 2 s."""
    run = run_of(closed_loop(8, 32, slots=4), 8)
    assert run["figures"]["ttft"] == exactly(3.0), "1.0 by a clock that starts when the server does"
    assert run["figures"]["residual_e2e"] == exactly(1.0)
    assert "runs 4 requests at once" in told(run, 8, max_running_requests=4)
    run["server"]["queued"] = 4.0
    assert "4.0 requests waited in the server's queue" in told(run, 8)


def test_15_16_17_the_start_is_outside_the_window() -> None:
    """The first requests come all at once to a cold engine, and wait 10 s more."""
    requests = closed_loop(N, 12, ttft=lambda n: 11.0 if n < N else 1.0)
    value = figures(requests)
    assert value["ttft_p99"] == exactly(1.0)
    assert value["stream_e2e"] == exactly(5.5)
    assert float(np.quantile(first_tokens(requests), 0.99)) == exactly(11.0), "over the whole run"


def test_18_an_engine_that_gets_faster_within_the_window_is_told() -> None:
    run = run_of(closed_loop(N, 16, ttft=lambda n: 3.0 if n < 16 else 1.0), N)
    assert run["halves"][1] > 1.3 * run["halves"][0]
    assert "not steady" in told(run, N)
    assert "not steady" not in told(run_of(closed_loop(N, 16), N), N)


def test_20_ramp_and_drain_are_outside_the_window() -> None:
    """One stream in four is long: at the end it runs alone."""
    requests = closed_loop(N, 12, tokens=lambda n: 41 if n % 4 == 3 else 11)
    run = run_of(requests, N)
    start, end = run["window"]["start"], run["window"]["end"]
    came = sum(float(r.tokens[(r.times > start + 1e-6) & (r.times < end + 1e-6)].sum()) for r in requests)
    assert run["figures"]["aggregate"] == exactly(came / (end - start))
    assert run["in_flight"] == exactly(N)
    assert end < max(r.ended for r in requests) - 1, "the drain"
    whole = sum(r.output or 0 for r in requests) / (max(r.ended for r in requests) - min(r.sent for r in requests))
    assert whole < 0.95 * run["figures"]["aggregate"]


def test_21_equal_prompts_are_told() -> None:
    words = told(run_of(closed_loop(N, 12), N), N, distinct=1)
    assert "1 distinct prompts for 4 streams" in words
    assert "20 requests were made from 1 distinct prompts: some were sent again" in words


def test_24_lengths_are_what_came_not_what_was_asked() -> None:
    run = run_of(closed_loop(N, 12, limit=1000), N)
    assert run["figures"]["output_tokens"] == 11
    assert "cut at the token limit" not in told(run, N)


def test_25_cut_and_empty_outputs_are_told() -> None:
    assert "were cut at the token limit" in told(run_of(closed_loop(N, 12, limit=8), N), N)
    requests = closed_loop(N, 12, tokens=lambda n: 0 if n % 4 == 1 else 11)
    run = run_of(requests, N)
    assert "answers were empty" in told(run, N)
    assert run["figures"]["stream"] == exactly(10)
    assert run["requests"]["empty"] == sum(v == 0 for v in (r.output for r in requests if run_holds(run, r)))
    assert statistics.mean(decode_speed(r) or 0.0 for r in requests) == exactly(7.5), "a speed of 0 for an empty answer"


def run_holds(run: dict[str, dict[str, float]], request: Request) -> bool:
    return run["window"]["start"] <= request.ended <= run["window"]["end"]


def test_26_29_a_client_that_sends_late_does_not_stand() -> None:
    late = run_of(closed_loop(N, 12, lag=0.08), N)
    assert late["send_lag_p99"] == exactly(0.08)
    assert late["figures"]["ttft"] == exactly(1.0), "as if nothing were wrong: the lateness is nowhere else"
    assert "the client is saturated: 12 requests left more than 50 ms late" in doubts(late, N)
    busy = run_of(closed_loop(N, 12), N) | {"client": {"used": 0.6, "waited": 0.35}}
    assert "the client is saturated: its busiest process" in doubts(busy, N)


def test_28_streams_that_are_not_open_do_not_stand() -> None:
    """A client that opens 4 connections of 8."""
    requests = closed_loop(4, 32)
    run = run_of(requests, 8)
    assert run["in_flight"] == exactly(4)
    assert "only 4.0 of 8 streams were busy" in doubts(run, 8)


def test_30_percentiles_of_ttft_stand_beside_the_median() -> None:
    """One request in 10 waits 9 s: a mean of 1.8 s says neither what most see nor what the tenth sees."""
    value = figures(closed_loop(1, 100, ttft=lambda n: 9.0 if n % 10 == 9 else 1.0), 1)
    assert (value["ttft"], value["ttft_p99"]) == (exactly(1.0), exactly(9.0))


def test_31_speed_of_a_stream_never_stands_alone() -> None:
    """Decode twice as fast, prefill three times as slow: the stream's speed doubles, what is served falls."""
    before, after = figures(closed_loop(N, 12)), figures(closed_loop(N, 12, ttft=3.0, interval=0.05))
    assert after["stream"] == exactly(2 * before["stream"])
    assert after["aggregate"] == exactly(before["aggregate"] * 2 / 3.5)
    assert after["residual"] == exactly(11 / 3.5 / 20)
