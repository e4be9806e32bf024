from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from truecast.bench.stream import Request
from truecast.bench.window import Window, in_flight, steady_window, tokens_within
from truecast.errors import InputError


def request(sent: float, ended: float, *, warmup: bool = False, chunks: dict[float, float] | None = None) -> Request:
    times = np.array(list(chunks or {}), dtype=float)
    return Request(
        warmup=warmup,
        issued=sent,
        sent=sent,
        ended=ended,
        times=times,
        tokens=np.array(list((chunks or {}).values()), dtype=float),
        channels=np.ones(times.size, np.int8),
        counted=True,
        output=int(sum((chunks or {}).values())),
        prompt=1,
        cached=None,
        reasoning=None,
        finish="stop",
        error=None,
    )


STREAMS = [
    request(0, 4, warmup=True),
    request(0, 5, warmup=True),
    request(4, 9, warmup=True),
    request(5, 8, warmup=True),
    request(8, 12),
    request(9, 15),
    request(12, 14),
]


def test_the_window_is_from_the_hand_over_to_the_first_stream_that_is_not_replaced() -> None:
    assert steady_window(STREAMS, 2) == Window(8, 14)
    assert in_flight(STREAMS, Window(8, 14)) == 2


def test_a_stream_in_its_warm_up_still_counts_as_load_and_its_tokens_count() -> None:
    running = request(4, 9, warmup=True, chunks={5: 10, 9: 8})
    assert tokens_within([running], Window(8, 14)) == 2
    assert in_flight([running], Window(8, 14)) == pytest.approx(1 / 6)


def test_the_first_chunk_counts_when_it_comes() -> None:
    assert tokens_within([request(4, 9, chunks={5: 10, 9: 8})], Window(0, 5)) == 10
    assert tokens_within([request(4, 9, chunks={5: 10, 9: 8})], Window(0, 4.9)) == 0


def test_no_window_without_measured_requests_or_full_concurrency() -> None:
    with pytest.raises(InputError, match="after the warm-up"):
        steady_window([dataclasses.replace(r, warmup=True) for r in STREAMS], 2)
    with pytest.raises(InputError, match="never busy at the same time"):
        steady_window([request(0, 1, warmup=True), request(1, 1)], 2)
