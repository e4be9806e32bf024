"""A small stand-in for the ``aiperf`` program: the same configuration in, the same raw records out, over real HTTP.

It starts in a tenth of a second where AIPerf takes ten, so that tests can run many loads. test_aiperf.py checks that
the real one writes the same. Run as ``python -m tests.bench.recorder profile --config FILE``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


async def record(url: str, body: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """Send one request and return what AIPerf would have recorded of it."""
    host = urlsplit(url)
    data = json.dumps(body).encode()
    stall = float(os.environ.get("RECORDER_STALLS", 0)) if about["benchmark_phase"] == "profiling" else 0
    issued, started, perf = time.time_ns(), time.time_ns(), time.perf_counter_ns()
    if stall:
        time.sleep(stall)  # the whole event loop stands still, as without a CPU
        started, perf = time.time_ns(), time.perf_counter_ns()
    result: dict[str, Any] = {"start_perf_ns": perf, "payload": body, "status": None, "responses": []}
    try:
        reader, writer = await asyncio.open_connection(host.hostname, host.port, limit=1 << 24)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        result["status"] = int(answer.split()[1])
        if result["status"] != 200:
            length = next(int(x.split(":")[1]) for x in answer.split("\r\n") if x.startswith("content-length"))
            result["error"] = {"code": result["status"], "message": (await reader.readexactly(length)).decode()}
        else:
            await _stream(reader, result)
        writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        result["error"] = {"type": type(error).__name__, "message": str(error)}
    result["metadata"] = {
        "credit_issued_ns": issued,
        "request_start_ns": started,
        "request_end_ns": started + time.perf_counter_ns() - perf,
        **about,
    }
    return result


async def _stream(reader: asyncio.StreamReader, result: dict[str, Any]) -> None:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        event = (await reader.readexactly(size + 2))[:-2].decode()
        at = time.perf_counter_ns()
        value = event.strip().removeprefix("data: ")
        result["responses"].append({"perf_ns": at, "packets": [{"name": "data", "value": value}]})


async def load(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold the streams of two phases busy, the second taking over from the first without draining."""
    bench = config["benchmark"]
    url = bench["endpoint"]["urls"][0]
    bodies = [json.loads(line) for line in Path(bench["datasets"][0]["path"]).read_text().splitlines()]
    warmup, profiling = bench["phases"]
    records: list[dict[str, Any]] = []
    sent, stop = 0, float("inf")

    async def stream() -> None:
        nonlocal sent, stop
        while True:
            phase = "warmup" if sent < warmup["requests"] else "profiling"
            if phase == "profiling" and stop == float("inf"):
                stop = time.time() + profiling.get("duration", float("inf"))
            if time.time() >= stop or sent >= warmup["requests"] + profiling.get("requests", float("inf")):
                return
            number, sent = sent, sent + 1
            records.append(await record(url, bodies[number % len(bodies)], {"benchmark_phase": phase}))

    await asyncio.gather(*(stream() for _ in range(warmup["concurrency"])))
    return records


def main(argv: list[str]) -> None:
    """The command line that bench uses."""
    assert argv[:2] == ["profile", "--config"]
    config = json.loads(Path(argv[2]).read_text())
    folder = Path(config["benchmark"]["artifacts"]["dir"])
    records = asyncio.run(load(config))
    (folder / "profile_export_raw.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


if __name__ == "__main__":
    main(sys.argv[1:])
