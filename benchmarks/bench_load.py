"""Does the client sustain 200 streams of 50 tok/s, one token a chunk, without distorting what it measures?

Real AIPerf against tests/bench/timed_server.py, both on this machine; the truth is the server's schedule and log. The
CPU of AIPerf's processes and of the server is printed. Run from the repository's root where AIPerf is installed:
``python -m benchmarks.bench_load [seconds] [streams]``; ``taskset -c 0,1`` before it makes a machine of two cores.
"""

from __future__ import annotations

import sys

from benchmarks.bench_accuracy import measure, truth

BEHAVIOUR = {"ttft": 0.5, "interval": 0.02, "tokens": 400, "spread": 0.5, "chunk": [1, 1], "reasoning": 0.4}
LIMIT = 0.02


def main(argv: list[str]) -> int:
    """Print the table. Returns 1 if a figure of speed is further off than 2%."""
    seconds = float(argv[0]) if argv else 30.0
    streams = int(argv[1]) if len(argv) > 1 else 200
    document, log = measure(streams, seconds, BEHAVIOUR)
    run = document["levels"][0]["runs"][0]
    chunks = [at for s in log for at, _, _ in s["chunks"] if run["window"]["start"] <= at <= run["window"]["end"]]
    print(
        f"{streams} streams, {len(chunks) / run['window']['seconds']:,.0f} events a second for"
        f" {run['window']['seconds']:.0f} s, {run['in_flight']:.1f} in flight;"
        f" sending process {run['client']}, send lag p99 {run['send_lag_p99'] * 1000:.0f} ms"
    )
    late = sorted(c[i][0] - c[0][0] - 0.02 * i for s in log if (c := s["chunks"]) for i in range(1, len(c)))
    print(
        f"server's own lateness: median {late[len(late) // 2] * 1000:.1f} ms, p99 {late[-len(late) // 100] * 1000:.0f} ms"
    )
    true, worst = truth(log, run["window"], streams), 0.0
    for name in ("stream", "stream_e2e", "aggregate", "residual", "ttft", "ttft_p99", "output_tokens"):
        off = run["figures"][name] / true[name] - 1
        worst = max(worst, abs(off))
        print(f"{name:18}{run['figures'][name]:12.4f}{true[name]:12.4f}{off:9.2%}")
    for line in document["levels"][0]["faults"]:
        print("does not stand:", line)
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
