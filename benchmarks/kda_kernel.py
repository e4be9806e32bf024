"""KDA's Triton kernel on a GPU: ``python -m benchmarks.kda_kernel``.

Kimi-K3's heads (96 of width 128), bfloat16 projections. For each way of running the kernel: seconds for documents of 4,096
tokens, ten at once as the audit has them, projected to 355,000 tokens; and the largest error of outputs and state against
the recurrence in float64, relative to the largest value, next to that of the chunked form in float32.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from truecast.models.kimi_k3 import kda_cuda
from truecast.models.kimi_k3.kda import _unit, log_decay, short_convolution
from truecast.models.kimi_k3.kda_chunked import chunked
from truecast.models.kimi_k3.kda_recurrent import recurrent

HEADS, WIDTH, BOUND, EPS = 96, 128, -5.0, 1e-6
WAYS = [
    (64, 8, "tf32x3"),
    (64, 4, "tf32x3"),
    (32, 8, "tf32x3"),
    (32, 4, "tf32x3"),
    (128, 8, "tf32x3"),
    (64, 8, "ieee"),
    (32, 4, "ieee"),
]
"""Channels of the value a program has, its warps, how its matrix products are done."""


def inputs(batch: int, tokens: int, heads: int) -> list[object]:
    """Random arguments of :func:`truecast.models.kimi_k3.kda_cuda.attend`, without tails and state."""
    g = torch.Generator("cuda").manual_seed(0)
    inner = heads * WIDTH

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, device="cuda")

    projected = [normal(batch, tokens, inner).bfloat16() for _ in "qkv"]
    convolutions = [normal(inner, 4) / 2 for _ in "qkv"]
    raw, logits = normal(batch, tokens, inner).bfloat16(), normal(batch, tokens, heads).bfloat16()
    return [projected, convolutions, [], raw, logits, normal(heads) / 2, normal(inner), None, BOUND, EPS]


def stepwise(given: list, form: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # type: ignore[type-arg]
    """The same by the plain functions."""
    projected, convolutions, _, raw, logits, a_log, dt_bias = given[:7]
    shape = (*raw.shape[:2], logits.shape[-1], WIDTH)
    q, k, v = (
        short_convolution(x.to(dtype), w.to(dtype), None)[0].reshape(shape)
        for x, w in zip(projected, convolutions, strict=True)
    )
    a = log_decay(raw.to(dtype).reshape(shape), a_log, dt_bias, BOUND)
    some = (_unit(q) * WIDTH**-0.5, _unit(k), v, a, torch.sigmoid(logits.to(dtype)), None)
    return recurrent(*some) if form == "recurrent" else chunked(*some, BOUND)


def error(ours: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> float:
    """Largest of both parts."""
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(ours, wanted, strict=True))


def main() -> None:
    """Print a line for each way."""
    small, large = inputs(2, 1000, 8), inputs(10, 4096, HEADS)
    wanted = stepwise(small, "recurrent", torch.float64)
    print(f"chunked form, float32: error {error(stepwise(small, 'chunked', torch.float32), wanted):.1e}", flush=True)
    for values, warps, how in WAYS:
        kda_cuda._VALUES, kda_cuda._WARPS, kda_cuda.PRECISION = values, warps, how
        apart = error(kda_cuda.attend(*small), wanted)  # type: ignore[arg-type]
        times = []
        for _ in range(4):
            torch.cuda.synchronize()
            began = time.perf_counter()
            kda_cuda.attend(*large)  # type: ignore[arg-type]
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        took = statistics.median(times[1:])
        whole = took * 355_000 / (10 * 4096)
        print(
            f"{how:7} {values:4} channels {warps} warps: {took * 1e3:6.1f} ms, {whole:.3f} s for 355k, error {apart:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
