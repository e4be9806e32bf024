"""SiTU and FP8 quantization in one kernel, against a copy of the same bytes: ``python -m benchmarks.sglang_situ``

Kimi-K3's experts (I = 3072) in W4AFP8. A row costs one read of ``2 I`` BF16 and one write of ``I`` bytes; the copy moves
as many bytes in all, half of them read and half written, where the kernel reads 80 %: with few rows the cache takes what is
written, so that the copy waits for less of its bytes. ``reads`` is a kernel that reads and writes just what ours does, and
computes nothing: what cannot be beaten. Two forms: rows that follow one another, with their number on
the GPU (rows = tokens x 16 experts each), and DeepEP's low-latency form, ``[experts, places, 2 I]`` with a count for each
expert. With SGLang on the path its own SiLU kernels are timed too; without it that column is empty.

Times are medians, each call in a CUDA graph, with the L2 cache overwritten before it. ``--sweep`` tries other constants
of the kernel, and says at the end how each does over all cases.
``--device cpu`` runs every line at a tiny size by the plain form: times mean nothing then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from truecast.engines.sglang.kernels import situ_fp8, situ_fp8_plain
from truecast.engines.sglang.kernels.situ_fp8_plain import Situ

FORM = Situ(4.0, 25.0)
E4M3 = torch.float8_e4m3fn
WIDTH = 3072
LIMIT = 1.15
Call = Callable[[], object]
VARIANTS = {
    f"{programs} programs, {elements} elements{', ahead' * ahead}{'' if policy else ', input stays'}"
    f"{'' if polynomial else ', hardware exponential'}": {
        "_WALK": (programs, elements),
        "_AHEAD": ahead,
        "_FIRST_OUT": policy,
        "_POLYNOMIAL": polynomial,
    }
    for programs, elements, ahead, policy, polynomial in (
        (16, 8, False, "evict_first", True),
        (16, 8, False, "evict_first", False),
        (16, 8, False, "", True),
        (32, 8, False, "evict_first", True),
        (64, 8, False, "evict_first", True),
        (12, 8, True, "evict_first", True),
        (16, 16, False, "evict_first", True),
        (64, 16, False, "evict_first", True),
        (256, 16, False, "evict_first", True),
    )
}
"""What ``--sweep`` sets in the kernel's module. Programs are for each of the GPU's processors."""


@triton.jit
def _reads(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(x + i, mask=i < n, eviction_policy="evict_first")
    second = tl.load(x + n + i, mask=i < n, eviction_policy="evict_first")
    tl.store(out + i, (first ^ second).to(tl.int8), mask=i < n)


@dataclass(frozen=True)
class Case:
    """``counts`` real rows of each expert in ``places`` there are; one expert is the form of rows one after another."""

    name: str
    counts: tuple[int, ...]
    places: int
    dynamic: bool = False


def cases(small: bool) -> list[Case]:
    """All lines of the table."""
    if small:
        return [Case("rows", (5,), 8), Case("rows, dynamic", (5,), 8, True), Case("masked", (3, 0, 4), 4)]
    flat = [Case(f"rows {tokens} x 16", (tokens * 16,), tokens * 16) for tokens in (40, 150, 512, 1024, 4096)]
    part = [Case("rows, 1 of 8 here", (4096 * 2,), 4096 * 16)]
    dynamic = [Case(f"rows {tokens} x 16, dynamic", (tokens * 16,), tokens * 16, True) for tokens in (150, 4096)]
    even = [
        Case(f"masked 28 x {n} of {places}", (n,) * 28, places) for n, places in ((16, 1024), (128, 2048), (1024, 2048))
    ]
    uneven = [Case("masked 28, one has half", (2048, *(76,) * 27), 2048)]
    return flat + part + dynamic + even + uneven


def main() -> int:
    """Print the table and a line of JSON. Returns 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    stock = stock_kernels() if device.type == "cuda" else None
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, SGLang's kernels: {'yes' if stock else 'no'}")
    print(
        f"{'case':28} {'MB':>8} {'ours us':>9} {'copy us':>9} {'reads us':>9} {'stock us':>9} {'ours/copy':>9} {'ours/reads':>10}"
    )
    results, wrong = [], 0
    for case in cases(device.type == "cpu"):
        result = measure(case, device, stock, arguments.sweep)
        wrong += not result["right"]
        results.append(result)
        show = [f"{result[key]:9.2f}" if result[key] else f"{'-':>9}" for key in ("ours", "copy", "reads", "stock")]
        ratio = result["ours"] / result["copy"]
        mark = "" if case.dynamic or ratio <= LIMIT else "  over 1.15"
        least = f"{result['ours'] / result['reads']:10.2f}" if result["reads"] else f"{'-':>10}"
        print(f"{case.name:28} {result['megabytes']:8.1f} {' '.join(show)} {ratio:9.2f} {least}"
              f"{mark}{'' if result['right'] else '  WRONG'}")  # fmt: skip
        if result["sweep"]:
            best = sorted(result["sweep"].items(), key=lambda item: item[1])
            print("    " + "; ".join(f"{variant}: {us:.2f} ({us / result['copy']:.2f})" for variant, us in best))
    if arguments.sweep:
        summary(results)
    print("JSON", json.dumps({"device": name, "width": WIDTH, "results": results}))
    return 1 if wrong else 0


def summary(results: list[dict[str, Any]]) -> None:
    """Each variant over all cases, the one with the smallest of its worst ratios first."""

    def ratios(variant: str) -> list[float]:
        return [result["sweep"][variant] / result["copy"] for result in results]

    print("ours/copy of each variant, by case:", ", ".join(result["case"] for result in results))
    for variant in sorted(VARIANTS, key=lambda variant: max(ratios(variant))):
        print(f"    {' '.join(f'{ratio:5.2f}' for ratio in ratios(variant))}  {variant}")


def stock_kernels() -> Any:
    """SGLang's module of kernels, or None where it cannot be imported."""
    try:
        import sglang.kernels.ops.moe.ep_moe_kernels as kernels
    except Exception as error:
        print(f"without SGLang's kernels: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return None
    return kernels


def measure(case: Case, device: torch.device, stock: Any, sweep: bool) -> dict[str, Any]:
    """One line of the table; times in microseconds."""
    width = WIDTH if device.type == "cuda" else 64
    experts, rows = len(case.counts), sum(case.counts)
    x = torch.empty(experts, case.places, 2 * width, dtype=torch.bfloat16, device=device).normal_(0, 4)
    out = torch.zeros(experts, case.places, width, device=device).to(E4M3)
    counts = torch.tensor(case.counts, dtype=torch.int32, device=device)
    scale = torch.full((1,), 0.05, device=device)

    def ours() -> None:
        if case.dynamic:
            situ_fp8.dynamic_scale(x, scale, counts, FORM)
        situ_fp8.quantize(x, out, scale, counts, FORM)

    def theirs() -> None:
        if experts > 1:
            stock.silu_and_mul_masked_post_per_tensor_quant_fwd(x, out, counts, scale)
        elif case.dynamic:
            stock.silu_mul_dynamic_tensorwise_quant_for_cutlass_moe(x[0], out[0], scale, counts, case.places, width)
        else:
            stock.silu_mul_static_tensorwise_quant_for_cutlass_moe(x[0], out[0], scale, counts, case.places, width)

    moved = rows * width * (5 + 4 * case.dynamic)  # with a dynamic scale the input is read twice
    source = torch.empty(moved // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    ours()
    right = check(case, x, out, scale)
    result: dict[str, Any] = {"case": case.name, "megabytes": moved / 1e6, "right": right, "sweep": {}}
    result |= {"stock": None, "reads": None}
    result["ours"] = timed(ours, device)
    result["copy"] = timed(lambda: target.copy_(source), device)
    if stock is not None:
        result["stock"] = timed(theirs, device)
    if device.type == "cuda" and not case.dynamic:
        n = rows * width
        both = torch.empty(2 * n, dtype=torch.int16, device=device)
        written = torch.empty(n, dtype=torch.int8, device=device)

        def reads() -> None:
            _reads[(triton.cdiv(n, 1024),)](both, written, n, BLOCK=1024, num_warps=4)

        result["reads"] = timed(reads, device)
    if sweep:
        before = {name: getattr(situ_fp8, name) for name in next(iter(VARIANTS.values()))}
        for variant, values in VARIANTS.items():
            vars(situ_fp8).update(values)
            result["sweep"][variant] = timed(ours, device)
            result["right"] &= check(case, x, out, scale)
        vars(situ_fp8).update(before)
    return result


def check(case: Case, x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor) -> bool:
    """Are an expert's first rows within a step of E4M3 of the plain form?"""
    expert = max(range(len(case.counts)), key=lambda e: case.counts[e])
    rows = min(64, case.counts[expert])
    wanted = situ_fp8_plain.situ(x[expert, :rows], FORM) / scale
    got = out[expert, :rows].float()
    return bool(((got - wanted.clamp(-448, 448)).abs() <= wanted.abs() / 8 + 2.0**-9).all())


def timed(call: Call, device: torch.device, repeats: int = 40) -> float:
    """Median microseconds of one call."""
    if device.type == "cpu":
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6
    call()  # compiled before it is captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    cache = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]
    for start_event, end_event in zip(starts, ends, strict=True):
        cache.zero_()
        start_event.record()
        graph.replay()
        end_event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(starts, ends, strict=True)) * 1e3


if __name__ == "__main__":
    sys.exit(main())
