"""INT4 on a CUDA device: ``python -m benchmarks.int4_cuda``. Equal to the CPU bit for bit? How fast, against what bound?

1. Equality with the CPU over all outputs (codes, scales, errors, energies), for laws, methods, weights, and corner cases.
2. The kernel alone, data in device memory: GB/s of packed MXFP4 source (codes), and all bytes that it moves as a share of
   the rate at which the same device copies memory in the same run.
3. The way a converter goes, host memory to host memory, against a plain copy of the same bytes there and back.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import triton

from truecast.casts import int4, int4_cuda
from truecast.casts.bf16_to_mxfp4 import quantize as to_mxfp4
from truecast.casts.int4_cpu import DEPTH, DEPTH_WEIGHTED

LAYER_BYTES = 16.99e9
"""Packed codes and scales of one Kimi-K3 MoE layer: 896 experts of three matrices."""


def main() -> int:
    """Run all three parts. Returns 1 if any result differs from the CPU's."""
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__, flush=True)
    different = equality()
    result = {"different": different, "kernel": kernel(), "pipeline": pipeline()}
    print(json.dumps(result))
    return 1 if different else 0


def equality() -> int:
    """Number of outputs that differ from the CPU's."""
    rng = np.random.default_rng(0)
    different = 0
    groups = 0
    for name, source in sources(rng).items():
        cols = source[0].shape[1] * 2
        weights = int4.importance(np.exp(rng.normal(0, 3, cols)))
        for method, weighted in (("exact", False), ("exact", True), ("signed", False), ("amax", False)):
            chosen = weights if weighted else None
            cpu = int4.quantize(*source, method=method, weights=chosen)
            gpu = int4.quantize(*source, method=method, weights=chosen, device="cuda:0")
            groups += cpu.scales.size
            for part in ("codes", "scales", "errors", "energies"):
                if not np.array_equal(getattr(cpu, part), getattr(gpu, part)):
                    different += 1
                    print(f"DIFFERENT: {part} of {name}, {method}{', weighted' if weighted else ''}")
    print(f"equality: {groups:,} groups, {different} outputs differ", flush=True)
    return different


def sources(rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """MXFP4 matrices of many kinds."""
    shape = (1024, 3584)
    laws = {
        "gauss": rng.standard_normal(shape),
        "student-t5": rng.standard_t(5, shape),
        "student-t2": rng.standard_t(2, shape),
        "rows and columns of different size": rng.standard_normal(shape)
        * np.exp(rng.normal(0, 1, (shape[0], 1)) + rng.normal(0, 1, (1, shape[1]))),
        "sparse": rng.standard_normal(shape) * (rng.random(shape) < 0.05),
    }
    found = {name: to_mxfp4(values.astype(np.float32)) for name, values in laws.items()}
    codes = rng.integers(0, 256, (512, 512), dtype=np.uint8)
    found["all codes, all scale bytes"] = codes, rng.integers(0, 255, (512, 32), dtype=np.uint8)
    found["tiny"] = codes, rng.integers(0, 12, (512, 32), dtype=np.uint8)
    found["huge"] = codes, rng.integers(240, 255, (512, 32), dtype=np.uint8)
    found["zeros"] = np.where(codes > 128, np.uint8(0x88), np.uint8(0)), np.zeros((512, 32), np.uint8)
    return found


def timed(run: Callable[[], object], repeats: int = 9) -> float:
    """Median seconds of a device operation."""
    run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return statistics.median(times)


def kernel() -> dict[str, float]:
    """Rates with everything in device memory."""
    rows, cols = 3072 * 48, 3584  # 264 MB of codes: many times the cache
    packed, scales = to_mxfp4(np.random.default_rng(1).standard_normal((3072, cols)).astype(np.float32))
    words = torch.from_numpy(packed.view(np.int32).ravel()).cuda().repeat(48)
    scale_words = torch.from_numpy(scales.view(np.int32).ravel()).cuda().repeat(48)
    weights = torch.from_numpy(int4.importance(np.ones(cols)).astype(np.int32)).cuda()
    code_bytes = words.numel() * 4
    groups = rows * cols // 128
    moved = groups * (64 + 4 + 64 + 2 + 16)
    big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(big)
    copy = 2 * big.numel() / timed(lambda: other.copy_(big))
    result = {"copy_GBps": copy / 1e9}
    for name, method, given, depth in (
        ("exact", 0, None, DEPTH),
        ("exact_weighted", 0, weights, DEPTH_WEIGHTED),
        ("signed", 1, None, DEPTH),
        ("amax", 2, None, DEPTH),
    ):
        seconds = timed(
            lambda m=method, g=given, d=depth: int4_cuda.launch(words, scale_words, g, m, True, d, cols // 128)
        )
        result[f"{name}_packed_GBps"] = code_bytes / seconds / 1e9
        result[f"{name}_share_of_copy"] = moved / seconds / copy
    result["layer_seconds"] = LAYER_BYTES / (result["exact_packed_GBps"] * 1e9 * 68 / 64)
    for key, value in result.items():
        print(f"  {key:28}{value:10.3f}", flush=True)
    return result


def pipeline() -> dict[str, float]:
    """Host to host, a matrix at a time, as the converter calls it."""
    packed, scales = to_mxfp4(np.random.default_rng(2).standard_normal((3072, 3584)).astype(np.float32))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    int4.quantize(packed, scales, device="cuda:0")
    begun = time.perf_counter()
    count = 100
    for _ in range(count):
        int4.quantize(packed, scales, device="cuda:0")
    whole = (time.perf_counter() - begun) / count
    begun = time.perf_counter()
    for _ in range(count):
        torch.from_numpy(packed).cuda().cpu()
    there_and_back = (time.perf_counter() - begun) / count
    int4.quantize(packed, scales)
    begun = time.perf_counter()
    for _ in range(3):
        int4.quantize(packed, scales)
    cpu = (time.perf_counter() - begun) / 3
    result = {
        "host_to_host_MBps": packed.nbytes / whole / 1e6,
        "copy_there_and_back_MBps": packed.nbytes / there_and_back / 1e6,
        "one_cpu_core_MBps": packed.nbytes / cpu / 1e6,
        "peak_device_MB": torch.cuda.max_memory_allocated() / 1e6,
    }
    for key, value in result.items():
        print(f"  {key:28}{value:10.1f}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
