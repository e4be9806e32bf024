"""FP8 KV prefill in SGLang: converting the whole pool against gathering the batch's rows first.

``python -m benchmarks.sglang_kv_gather [--device cuda] [--pool 1000000]``: one layer's pool of 576 bytes a token, batches of
1 to 65,536 scattered rows; time and the memory that is taken while it lasts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from truecast.engines.sglang.fixes.fp8_kv_gather import gather

WIDTH = 576
ROWS = (1, 64, 1024, 4096, 16384, 65536)


def measure(function: Callable[[], Any], device: str, rounds: int = 7) -> tuple[float, int]:
    """Median seconds of one call, and bytes at its height beyond those before it."""
    if device == "cpu":
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return statistics.median(times), 0
    function()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    height = torch.cuda.max_memory_allocated() - before
    times = []
    for _ in range(rounds):
        calls = 10
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times), height


def main() -> None:
    """Print the table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pool", type=int, default=1_000_000)
    arguments = parser.parse_args()
    device, size = arguments.device, arguments.pool
    pool = torch.randint(0, 120, (size + 1, 1, WIDTH), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    seconds, height = measure(lambda: pool.to(torch.bfloat16), device)
    result: dict[str, Any] = {
        "device": device,
        "pool": size,
        "stock": {"seconds": seconds, "bytes": height},
        "gather": [],
    }
    if device == "cuda":
        result["gpu"] = torch.cuda.get_device_name()
    print(f"pool of {size:,} tokens, one layer")
    print(f"{'':>12}{'ms':>10}{'MiB':>10}{'times':>8}")
    print(f"{'stock':>12}{seconds * 1e3:10.3f}{height / 2**20:10.1f}{1:8.1f}")
    for rows in ROWS:
        if rows >= size:
            continue
        index = torch.randperm(size, device=device)[:rows].int() + 1
        ours = gather(pool, index).to(torch.bfloat16)
        wanted = pool[index.long()].to(torch.bfloat16) if device == "cpu" else pool.to(torch.bfloat16)[index.long()]
        assert torch.equal(ours.view(torch.int16), wanted.view(torch.int16)), "not the same bits"
        del ours, wanted
        took, most = measure(lambda index=index: gather(pool, index).to(torch.bfloat16), device)  # type: ignore[misc]
        result["gather"].append({"rows": rows, "seconds": took, "bytes": most, "faster": seconds / took})
        print(f"{rows:>12,}{took * 1e3:10.3f}{most / 2**20:10.1f}{seconds / took:8.1f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
