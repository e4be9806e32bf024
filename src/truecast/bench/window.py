"""The steady window of a run: every figure of speed comes from the time when all streams were busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from truecast.bench.stream import Request
from truecast.errors import InputError


@dataclass(frozen=True)
class Window:
    """From ``start`` to ``end``, seconds of the client's wall clock."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Length."""
        return self.end - self.start

    def holds(self, at: float) -> bool:
        """Is this moment inside?"""
        return self.start <= at <= self.end


def steady_window(requests: Sequence[Request], concurrency: int) -> Window:
    """The time at full concurrency.

    It starts with the first request after the warm-up, which is handed over without draining: its requests still run.
    It ends when a stream ends and none is sent in its place, so no drain is in it. Raises: InputError if that is empty.
    """
    measured = [r.sent for r in requests if not r.warmup]
    if not measured:
        raise InputError("no request was sent after the warm-up", fix="a longer --duration or more --requests")
    begun = sorted(r.sent for r in requests)
    start = max(min(measured), begun[min(concurrency, len(begun)) - 1])
    last = begun[-1]
    end = min((r.ended for r in requests if r.ended > last), default=last)
    if end <= start:
        raise InputError(
            f"{concurrency} streams were never busy at the same time",
            fix="a longer --duration, or --requests of at least twice the concurrency",
        )
    return Window(start, end)


def in_flight(requests: Sequence[Request], window: Window) -> float:
    """Mean number of requests in flight in the window, as the client saw it."""
    overlap = (max(0.0, min(r.ended, window.end) - max(r.sent, window.start)) for r in requests)
    return sum(overlap) / window.seconds


def tokens_within(requests: Sequence[Request], window: Window) -> float:
    """Output tokens that came in the window. A chunk's tokens are taken as made evenly since the chunk before."""
    return sum(_made_by(r, window.end) - _made_by(r, window.start) for r in requests if r.times.size)


def _made_by(request: Request, at: float) -> float:
    if at < request.times[0]:
        return 0.0
    return float(np.interp(at, request.times, np.cumsum(request.tokens)))
