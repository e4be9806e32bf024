"""Raw records with exact times, in AIPerf's format: a closed loop against a server whose speed is given."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from typing import Any

from truecast.bench.figures import run_figures
from truecast.bench.server import Server
from truecast.bench.sound import faults, remarks
from truecast.bench.stream import Request, request_of

BEGIN_NS = 1_796_000_000 * 10**9
PERF_NS = 50_000 * 10**9
"""The clock of the events has another origin than that of the requests."""


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


def closed_loop(
    streams: int,
    requests: int,
    *,
    ttft: float | Callable[[int], float] = 1.0,
    interval: float = 0.1,
    tokens: int | Callable[[int], int] = 11,
    chunk: int = 1,
    reasoning: int = 0,
    tool: bool = False,
    usage: str = "continuous",
    slots: int | None = None,
    cached: Callable[[int], bool] = lambda _: False,
    lag: float = 0.0,
    limit: int | None = None,
) -> list[Request]:
    """Requests of a run: 2 ``streams`` of warm-up, then ``requests``; each is sent as a stream comes free.

    The first chunk comes ``ttft`` after the server began, the others by ``interval`` a token; the first ``reasoning``
    tokens are thinking. ``slots``: how many requests the server runs at once. ``lag``: how late the client sends.
    """
    free, slot = [0.0] * streams, [0.0] * (slots or streams)
    made = []
    for number in range(2 * streams + requests):
        issued = heapq.heappop(free)
        sent = issued + lag
        begin = max(sent, heapq.heappop(slot))
        total = tokens(number) if callable(tokens) else tokens
        total = total if limit is None else min(total, limit)
        first = begin + (ttft(number) if callable(ttft) else ttft)
        counts = [min(i, total) for i in range(chunk, total + chunk, chunk)]
        end = first + max(0, total - min(chunk, total)) * interval
        if tool:
            counts = [total]
        answer = []
        for count in counts:
            at = end if tool else first + (count - min(chunk, total)) * interval
            # three words and a run of spaces for a token: who tokenises the text again gets another count
            text, last = "wo rd   s " * chunk, count - 1
            delta: dict[str, Any] = {"content": text}
            if tool:
                delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
            elif last < reasoning:
                delta = {"reasoning_content": text}
            event: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            if usage == "continuous":
                event["usage"] = {"prompt_tokens": 10, "completion_tokens": count}
            answer.append((at, event))
        reason = "length" if total == limit else "stop"
        answer.append((end, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
        answer.append((end, {"choices": [], "usage": _usage(total, reasoning, cached(number))}))
        heapq.heappush(slot, end)
        heapq.heappush(free, end)
        made.append(request_of(_record(number < 2 * streams, issued, sent, end, answer)))
    return made


def _usage(total: int, reasoning: int, cached: bool) -> dict[str, Any]:
    return {
        "prompt_tokens": 10,
        "completion_tokens": total,
        "reasoning_tokens": min(total, reasoning),
        "prompt_tokens_details": {"cached_tokens": 10 if cached else 0},
    }


def _record(
    warmup: bool, issued: float, sent: float, end: float, answer: list[tuple[float, dict[str, Any]]]
) -> dict[str, Any]:
    about = {
        "credit_issued_ns": BEGIN_NS + ns(issued),
        "request_start_ns": BEGIN_NS + ns(sent),
        "request_end_ns": BEGIN_NS + ns(end),
        "benchmark_phase": "warmup" if warmup else "profiling",
    }
    responses = [
        {"perf_ns": PERF_NS + ns(at), "packets": [{"name": "data", "value": json.dumps(event)}]} for at, event in answer
    ]
    return {"metadata": about, "start_perf_ns": PERF_NS + ns(sent), "status": 200, "responses": responses}


def run_of(requests: list[Request], streams: int) -> dict[str, Any]:
    """Figures of the run, as ``bench`` records them; the client had CPU, the server had no queue of its own."""
    return {
        **run_figures(requests, streams),
        "client": {"used": 0.1, "waited": 0.0},
        "server": {"acceptance_length": None, "running": None, "queued": None},
    }


def told(run: dict[str, Any], streams: int, distinct: int = 1000, **settings: Any) -> str:
    """Every remark on a run."""
    server = Server("http://a", "m", arguments=settings)
    return "\n".join(remarks(run, streams, server, {"prompts": 1000, "distinct": distinct}))


def doubts(run: dict[str, Any], streams: int) -> str:
    """Every reason why a run does not stand."""
    return "\n".join(faults(run, streams))
