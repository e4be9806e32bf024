"""The figures of one run, each with its definition, its unit and how many requests it is taken from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from truecast.bench.stream import ANSWER, REASONING, TOOL, Request
from truecast.bench.window import Window, in_flight, steady_window, tokens_within

DEFINITIONS = {
    "stream": "tok/s of a stream: output tokens after the first chunk's / time from the first to the last token;"
    " median of the requests that finished in the window",
    "stream_e2e": "tok/s of a stream, end to end: output tokens / time from sending to the last token; median of the"
    " requests that finished in the window, without the first of each stream",
    "aggregate": "tok/s of the server: output tokens that came in the window / its length",
    "residual": "aggregate / (concurrency x mean of stream): 1 if every stream decoded all the time",
    "residual_e2e": "aggregate / (concurrency x mean of stream_e2e)",
    "ttft": "s from sending to the first token of any channel; median of the requests sent in the window",
    "ttft_p99": "99th percentile of ttft",
    "ttft_answer": "s from sending to the first token of the answer (content or tool call, not reasoning); median",
    "reasoning_share": "reasoning tokens / output tokens of the requests that finished in the window; those of the chunks"
    " that carry reasoning, or by the server's own count where it does not count by chunk",
    "output_tokens": "output tokens of a request, as the server counts; mean of those that finished in the window",
    "tokens_per_chunk": "output tokens / chunks of the stream",
}
"""What each figure means; printed and recorded with the numbers."""

MAX_LAG_S = 0.05
"""A request that leaves later than this after it was decided on is late by the client's fault."""

PER_REQUEST = ("stream", "stream_e2e", "ttft", "ttft_answer")
"""Figures that are medians over requests."""


def run_figures(requests: Sequence[Request], concurrency: int) -> dict[str, Any]:
    """Figures of one run at one concurrency. Raises: InputError if there is no steady window."""
    window = steady_window(requests, concurrency)
    done = [r for r in requests if r.error is None]
    finished = [r for r in done if window.holds(r.ended)]
    sent = [r for r in done if window.holds(r.sent)]
    first = {id(r) for r in sorted(requests, key=lambda r: r.sent)[:concurrency]}
    samples = {
        "stream": [v for r in finished if (v := decode_speed(r)) is not None],
        "stream_e2e": [v for r in finished if id(r) not in first and (v := whole_speed(r)) is not None],
        "ttft": [float(r.times[0] - r.sent) for r in sent if r.times.size],
        "ttft_answer": [v for r in sent if (v := answer_delay(r)) is not None],
    }
    lags = [r.sent - r.issued for r in requests if window.holds(r.sent)]
    aggregate = tokens_within(done, window) / window.seconds
    figures: dict[str, float | None] = {name: _median(samples[name]) for name in PER_REQUEST}
    figures |= {
        "aggregate": aggregate,
        "residual": _over(aggregate, samples["stream"], concurrency),
        "residual_e2e": _over(aggregate, samples["stream_e2e"], concurrency),
        "ttft_p99": float(np.quantile(samples["ttft"], 0.99)) if samples["ttft"] else None,
        "reasoning_share": _reasoning_share(finished),
        "output_tokens": float(np.mean([r.output or 0 for r in finished])) if finished else None,
        "tokens_per_chunk": _ratio(sum(r.output or 0 for r in finished), sum(r.times.size for r in finished)),
    }
    return {
        "window": {"start": window.start, "end": window.end, "seconds": window.seconds},
        "in_flight": in_flight(requests, window),
        "figures": figures,
        "samples": samples,
        "requests": _counts(requests, done, finished, window),
        "halves": _halves(done, window),
        "send_lag_p99": float(np.quantile(lags or [0.0], 0.99)),
        "sent_late": sum(lag > MAX_LAG_S for lag in lags),
        "cache": {
            "prompt_tokens": sum(r.prompt or 0 for r in sent),
            "cached_tokens": _sum_known([r.cached for r in sent]),
        },
    }


def decode_speed(request: Request) -> float | None:
    """Tokens a second between the first chunk and the last; ``None`` where all came at once (a buffered answer)."""
    if request.times.size < 2 or request.times[-1] <= request.times[0]:
        return None
    return float(request.tokens[1:].sum() / (request.times[-1] - request.times[0]))


def whole_speed(request: Request) -> float | None:
    """Tokens a second from sending to the last token; ``None`` for an empty answer."""
    if not request.output or not request.times.size or request.times[-1] <= request.sent:
        return None
    return float(request.output / (request.times[-1] - request.sent))


def answer_delay(request: Request) -> float | None:
    """Seconds from sending to the first token of the answer; ``None`` where there was only reasoning."""
    answer = np.flatnonzero((request.channels == ANSWER) | (request.channels == TOOL))
    return float(request.times[answer[0]] - request.sent) if answer.size else None


def reasoning_tokens(request: Request) -> float:
    """By the chunks of the reasoning channel where their tokens are counted, else by usage, else by the chunks all the same.

    A server's own count also has the marks around reasoning: in SGLang 3 tokens of an answer that did not reason.
    """
    if request.counted or request.reasoning is None:
        return float(request.tokens[request.channels == REASONING].sum())
    return request.reasoning


def _reasoning_share(finished: Sequence[Request]) -> float | None:
    return _ratio(sum(reasoning_tokens(r) for r in finished), sum(r.output or 0 for r in finished))


def _counts(
    requests: Sequence[Request], done: Sequence[Request], finished: Sequence[Request], window: Window
) -> dict[str, Any]:
    return {
        "sent": len(requests),
        "warmup": sum(r.warmup for r in requests),
        "finished_in_window": len(finished),
        "unfinished_at_end": sum(r.sent < window.end < r.ended for r in done),
        "errors": dict(Counter(r.error for r in requests if r.error is not None)),
        "finish": dict(Counter(r.finish for r in finished)),
        "empty": sum(r.output == 0 for r in finished),
        "at_once": sum(bool(r.output) and decode_speed(r) is None for r in finished),
        "uncounted_chunks": sum(not r.counted and r.times.size > 0 for r in finished),
    }


def _halves(done: Sequence[Request], window: Window) -> list[float]:
    """Aggregate of the first and the second half of the window: do they differ, it was not steady."""
    middle = (window.start + window.end) / 2
    parts = (Window(window.start, middle), Window(middle, window.end))
    return [tokens_within(done, part) / part.seconds for part in parts]


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _over(aggregate: float, speeds: Sequence[float], concurrency: int) -> float | None:
    return aggregate / (concurrency * float(np.mean(speeds))) if speeds else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _sum_known(values: Sequence[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
