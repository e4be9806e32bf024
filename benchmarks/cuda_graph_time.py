"""How long a call takes on the GPU when it is replayed from a CUDA graph, as a decode step is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

CALLS, REPEATS = 20, 15


def microseconds(call: Callable[[], object], device: str, calls: int = CALLS) -> float:
    """Median over replays of a graph of ``calls`` calls, per call. On a CPU, for a dry run, one call's wall time."""
    if device == "cpu":
        start = time.perf_counter()
        call()
        return 1e6 * (time.perf_counter() - start)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / calls)
    return statistics.median(times)


def eager_microseconds(call: Callable[[], object], device: str, calls: int = 100) -> float:
    """Mean of ``calls`` calls in a row from Python, with the launches."""
    calls = calls if device == "cuda" else 1
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / calls
