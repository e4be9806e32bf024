"""Does the client sustain 200 streams of 50 tok/s, one token a chunk, on two cores, without distorting what it measures?

Real AIPerf against tests/bench/timed_server.py as in benchmarks/bench_accuracy.py, of which it has the columns: the
client gets two cores, the server others. Run from the repository's root where AIPerf is installed:
``python -m benchmarks.bench_load [seconds] [streams]``.
"""

from __future__ import annotations

import sys

from benchmarks.bench_accuracy import LIMIT, compared, heading

BEHAVIOUR = {"ttft": 0.5, "interval": 0.02, "tokens": 400, "spread": 0.5, "chunk": [1, 1], "reasoning": 0.4}


def main(argv: list[str]) -> int:
    """Print the table. Returns 1 if a speed is further off than 2%."""
    seconds = float(argv[0]) if argv else 20.0
    heading()
    speed, _ = compared(int(argv[1]) if len(argv) > 1 else 200, seconds, BEHAVIOUR)
    return int(speed > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
