"""Is every figure of ``truecast bench`` within 2% of the truth? Real AIPerf against a server that knows it.

The server (tests/bench/timed_server.py) writes chunks of 1 to 8 tokens on a schedule and keeps when it wrote each: the
truth is its log in the same window, and how late it was itself is printed beside. Where there are more than two cores
the client (bench and AIPerf, every process) gets two of them and the server the others. Run from the repository's root
where AIPerf is installed: ``python -m benchmarks.bench_accuracy [seconds] [levels]``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cores import confine, described, split_cores
from truecast.bench.bench import bench
from truecast.bench.document import Options

BEHAVIOUR = {"ttft": 1.0, "interval": 0.02, "tokens": 100, "spread": 0.5, "chunk": [1, 8], "reasoning": 0.4}
LIMIT = 0.02
DELAYS = ("ttft", "ttft_p99", "ttft_answer")
CORES = 2
"""Of the client."""
COLUMNS = (
    "streams",
    "window",
    "requests",
    "events/s",
    "worst speed or count",
    "off",
    "worst delay",
    "off",
    "late by",
    "server late, p99",
    "sender's CPU",
    "waits",
    "send lag, p99",
)


def truth(log: list[dict[str, Any]], window: dict[str, float], concurrency: int) -> dict[str, float]:
    """Every figure by the server's own account."""
    start, end = window["start"], window["end"]
    ended = [s for s in log if start <= s["chunks"][-1][0] <= end]
    arrived = [s for s in log if start <= s["arrived"] <= end]
    first = {s["number"] for s in sorted(log, key=lambda s: s["arrived"])[:concurrency]}
    whole = [total(s) / (s["chunks"][-1][0] - s["arrived"]) for s in ended if s["number"] not in first]
    decode = [
        (total(s) - s["chunks"][0][1]) / (s["chunks"][-1][0] - s["chunks"][0][0]) for s in ended if len(s["chunks"]) > 1
    ]
    aggregate = sum(n for s in log for at, n, _ in s["chunks"] if start <= at <= end) / (end - start)
    delays = [s["chunks"][0][0] - s["arrived"] for s in arrived]
    answers = [next(at for at, _, channel in s["chunks"] if channel == "answer") - s["arrived"] for s in arrived]
    reasoned = sum(n for s in ended for _, n, channel in s["chunks"] if channel == "reasoning")
    return {
        "stream": statistics.median(decode),
        "stream_e2e": statistics.median(whole),
        "aggregate": aggregate,
        "residual": aggregate / (concurrency * statistics.mean(decode)),
        "residual_e2e": aggregate / (concurrency * statistics.mean(whole)),
        "ttft": statistics.median(delays),
        "ttft_p99": float(np.quantile(delays, 0.99)),
        "ttft_answer": statistics.median(answers),
        "reasoning_share": reasoned / sum(map(total, ended)),
        "output_tokens": statistics.mean(map(total, ended)),
        "tokens_per_chunk": sum(map(total, ended)) / sum(len(s["chunks"]) for s in ended),
    }


def total(served: dict[str, Any]) -> int:
    """Output tokens of one request."""
    return sum(n for _, n, _ in served["chunks"])


def lateness(log: list[dict[str, Any]], behaviour: dict[str, Any]) -> list[float]:
    """Seconds by which the server wrote its chunks after its own schedule, sorted."""
    late = []
    for served in log:
        due = served["started"] + behaviour["ttft"]
        for i, (at, size, _) in enumerate(served["chunks"]):
            due += behaviour["interval"] * size if i else 0.0
            late.append(at - due)
    return sorted(late)


def with_server(behaviour: dict[str, Any], measure: Callable[[str], dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    """Run ``measure`` against a timed server. Returns its document and what the server served."""
    command = [sys.executable, "-m", "tests.bench.timed_server", json.dumps(behaviour)]
    client, server_cores = split_cores(os.sched_getaffinity(0), CORES)
    with confine(server_cores):
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            with confine(client):
                document = measure(url)
            with urllib.request.urlopen(f"{url}/timed/log") as page:
                log = [s for s in json.loads(page.read()) if s["outcome"] != "probe"]
        finally:
            server.kill()
    return document, log


def measure(level: int, seconds: float, behaviour: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One level, one run, different prompts."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"How many primes below {i}?"}) + "\n" for i in range(5000)))
        options = Options(levels=[level], duration=seconds, runs=1)
        return with_server(behaviour, lambda url: bench(url, prompts, options, None, ["benchmarks.bench_accuracy"]))


def compared(level: int, seconds: float, behaviour: dict[str, Any]) -> tuple[float, float]:
    """Measure one level and print its row. Returns: how far off the worst speed is, and the worst figure of all."""
    document, log = measure(level, seconds, behaviour)
    run = document["levels"][0]["runs"][0]
    true, late = truth(log, run["window"], level), lateness(log, behaviour)
    off = {name: run["figures"][name] / should - 1 for name, should in true.items()}
    worst = max(off, key=lambda name: abs(off[name]))
    speed = max((name for name in off if name not in DELAYS), key=lambda name: abs(off[name]))
    delay = max(DELAYS, key=lambda name: abs(off[name]))
    by = run["figures"][delay] - true[delay]
    events = sum(run["window"]["start"] <= at <= run["window"]["end"] for s in log for at, _, _ in s["chunks"])
    used, waited = (run["client"][name] or 0.0 for name in ("used", "waited"))
    row = (
        level,
        f"{run['window']['seconds']:.0f} s",
        run["requests"]["finished_in_window"],
        f"{events / run['window']['seconds']:,.0f}",
        speed,
        f"{off[speed]:+.2%}",
        delay,
        f"{off[delay]:+.2%}",
        f"{by * 1000:+.1f} ms",
        f"{late[-len(late) // 100] * 1000:.1f} ms",
        f"{used:.0%}",
        f"{waited:.0%}",
        f"{run['send_lag_p99'] * 1000:.0f} ms",
    )
    print(_line(row), flush=True)
    for line in document["levels"][0]["faults"]:
        print("        does not stand:", line)
    return abs(off[speed]), abs(off[worst])


def heading() -> None:
    """Print who runs where, and the names of the columns."""
    print(described(os.sched_getaffinity(0), CORES))
    print(_line(COLUMNS), flush=True)


def _line(cells: Sequence[object]) -> str:
    return "  ".join(f"{cell!s:>{max(8, len(name))}}" for cell, name in zip(cells, COLUMNS, strict=True))


def main(argv: list[str]) -> int:
    """Print the table. Returns 1 if a figure is further off than 2%."""
    seconds = float(argv[0]) if argv else 8.0
    heading()
    levels = [int(x) for x in argv[1].split(",")] if len(argv) > 1 else [1, 20, 50]
    worst = max(compared(level, seconds, BEHAVIOUR)[1] for level in levels)
    print(f"worst {worst:.2%}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
