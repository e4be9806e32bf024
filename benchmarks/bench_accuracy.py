"""Is every figure of ``truecast bench`` within 2% of the truth? Real AIPerf against a server that knows it.

The server (tests/bench/timed_server.py) writes chunks of 1 to 8 tokens on a schedule and keeps when it wrote them. The
truth is the schedule where it says it (speed of a stream, TTFT), else the server's own log in the same window. Run from
the repository's root where AIPerf is installed: ``python -m benchmarks.bench_accuracy [seconds] [levels]``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from truecast.bench.bench import bench
from truecast.bench.document import Options

BEHAVIOUR = {"ttft": 1.0, "interval": 0.02, "tokens": 150, "spread": 0.5, "chunk": [1, 8], "reasoning": 0.4}
LIMIT = 0.02


def truth(log: list[dict[str, Any]], window: dict[str, float], concurrency: int) -> dict[str, float]:
    """Every figure by the server's own account."""
    start, end = window["start"], window["end"]
    ended = [s for s in log if start <= s["chunks"][-1][0] <= end]
    arrived = [s for s in log if start <= s["arrived"] <= end]
    first = {s["number"] for s in sorted(log, key=lambda s: s["arrived"])[:concurrency]}
    whole = [total(s) / (s["chunks"][-1][0] - s["arrived"]) for s in ended if s["number"] not in first]
    aggregate = sum(n for s in log for at, n, _ in s["chunks"] if start <= at <= end) / (end - start)
    delays = [s["chunks"][0][0] - s["arrived"] for s in arrived]
    speed = 1 / BEHAVIOUR["interval"]
    return {
        "stream": speed,
        "stream_e2e": statistics.median(whole),
        "aggregate": aggregate,
        "residual": aggregate / (concurrency * speed),
        "residual_e2e": aggregate / (concurrency * statistics.mean(whole)),
        "ttft": BEHAVIOUR["ttft"],
        "ttft_p99": float(np.quantile(delays, 0.99)),
        "ttft_answer": statistics.median(
            next(at for at, _, channel in s["chunks"] if channel == "answer") - s["arrived"] for s in arrived
        ),
        "reasoning_share": sum(n for s in ended for _, n, c in s["chunks"] if c == "reasoning")
        / sum(map(total, ended)),
        "output_tokens": statistics.mean(map(total, ended)),
        "tokens_per_chunk": sum(map(total, ended)) / sum(len(s["chunks"]) for s in ended),
    }


def total(served: dict[str, Any]) -> int:
    """Output tokens of one request."""
    return sum(n for _, n, _ in served["chunks"])


def with_server(behaviour: dict[str, Any], measure: Callable[[str], dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    """Run ``measure`` against a timed server. Returns its document and what the server served."""
    command = [sys.executable, "-m", "tests.bench.timed_server", json.dumps(behaviour)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
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


def main(argv: list[str]) -> int:
    """Print the table. Returns 1 if a figure is further off than 2%."""
    seconds = float(argv[0]) if argv else 60.0
    worst = 0.0
    for level in [int(x) for x in argv[1].split(",")] if len(argv) > 1 else (1, 20, 50):
        document, log = measure(level, seconds, BEHAVIOUR)
        run = document["levels"][0]["runs"][0]
        true = truth(log, run["window"], level)
        print(
            f"\n{level} streams, {run['window']['seconds']:.0f} s, {run['requests']['finished_in_window']} requests,"
            f" send lag p99 {run['send_lag_p99'] * 1000:.0f} ms, client {run['client']}"
        )
        print(f"{'figure':18}{'measured':>12}{'truth':>12}{'off':>9}")
        for name, should in true.items():
            value = run["figures"][name]
            off = value / should - 1
            worst = max(worst, abs(off))
            print(f"{name:18}{value:12.4f}{should:12.4f}{off:9.2%}")
        for line in document["levels"][0]["faults"]:
            print("does not stand:", line)
    print(f"\nworst {worst:.2%}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
