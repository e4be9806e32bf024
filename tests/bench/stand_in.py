"""A small stand-in for the ``aiperf`` program: the same configuration in, the same raw records out, over real HTTP.

It starts in a tenth of a second where AIPerf takes ten. What was asked and answered is real; the clock is not: every
event of a stream takes EVENT_NS, so that no figure depends on how busy the machine is. aiperf_raw.jsonl is what the real
one writes. Run as ``python -m tests.bench.stand_in profile --config FILE``.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

EVENT_NS = 1_000_000


async def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send one request and return what AIPerf would have recorded of it, without times."""
    host = urlsplit(url)
    data = json.dumps(body).encode()
    result: dict[str, Any] = {"payload": body, "status": None, "responses": []}
    reader, writer = await asyncio.open_connection(host.hostname, host.port, limit=1 << 24)
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        result["status"] = int(answer.split()[1])
        if result["status"] != 200:
            length = next(int(x.split(":")[1]) for x in answer.split("\r\n") if x.startswith("content-length"))
            result["error"] = {"code": result["status"], "message": (await reader.readexactly(length)).decode()}
        else:
            await _stream(reader, result)
    except (OSError, asyncio.IncompleteReadError) as error:
        result["error"] = {"type": type(error).__name__, "message": str(error)}
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return result


async def _stream(reader: asyncio.StreamReader, result: dict[str, Any]) -> None:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        event = (await reader.readexactly(size + 2))[:-2].decode()
        result["responses"].append({"packets": [{"name": "data", "value": event.strip().removeprefix("data: ")}]})


def length_ns(result: dict[str, Any]) -> int:
    """How long a request took, by the clock of the stand-in."""
    return EVENT_NS * (1 + len(result["responses"]))


async def load(bench: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold the streams of two phases busy, the second taking over from the first; results in the order of sending."""
    url = bench["endpoint"]["urls"][0]
    bodies = [json.loads(line) for line in Path(bench["datasets"][0]["path"]).read_text().splitlines()]
    warmup, profiling = bench["phases"]
    streams, most = warmup["concurrency"], warmup["requests"] + profiling.get("requests", sys.maxsize)
    enough = 1e9 * streams * profiling.get("duration", float("inf"))
    results: list[dict[str, Any]] = []
    measured = 0

    async def stream() -> None:
        nonlocal measured
        while len(results) < most and measured < enough:
            number = len(results)
            results.append({})
            results[number] = await ask(url, bodies[number % len(bodies)])
            if number >= warmup["requests"]:
                measured += length_ns(results[number])

    await asyncio.gather(*(stream() for _ in range(streams)))
    return results


def timed(results: list[dict[str, Any]], streams: int, warmup: int, begin_ns: int) -> list[dict[str, Any]]:
    """The records: each request is sent in the moment in which a stream is free, and takes its length."""
    free = [begin_ns + i * EVENT_NS // streams for i in range(streams)]
    for number, result in enumerate(results):
        sent = heapq.heappop(free)
        heapq.heappush(free, sent + length_ns(result))
        result["start_perf_ns"] = 0
        for i, message in enumerate(result["responses"], 1):
            message["perf_ns"] = i * EVENT_NS
        result["metadata"] = {
            "credit_issued_ns": sent,
            "request_start_ns": sent,
            "request_end_ns": sent + length_ns(result),
            "benchmark_phase": "warmup" if number < warmup else "profiling",
        }
    return results


def main(argv: list[str]) -> None:
    """The command line that bench uses. The clock begins when the configuration was written, just before the start."""
    if argv == ["--version"]:
        print("0.13.0")
        return
    assert argv[:2] == ["profile", "--config"]
    config = Path(argv[2])
    bench = json.loads(config.read_text())["benchmark"]
    phase = bench["phases"][0]
    results = asyncio.run(load(bench))
    records = timed(results, phase["concurrency"], phase["requests"], config.stat().st_mtime_ns)
    raw = Path(bench["artifacts"]["dir"]) / "profile_export_raw.jsonl"
    raw.write_text("".join(json.dumps(r) + "\n" for r in records))


if __name__ == "__main__":
    main(sys.argv[1:])
