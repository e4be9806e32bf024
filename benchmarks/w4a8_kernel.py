"""Do negative group scales compute right in SGLang's W4A8 kernel? ``python -m benchmarks.w4a8_kernel common_ops.abi3.so``

The kernel is ``cutlass_w4a8_moe_mm`` of sglang-kernel, called as SGLang calls it: experts' weights ``[N, K/2]`` int8,
BF16 group scales interleaved by four, FP8 activations with one scale. Shapes are Kimi-K3's, with a few experts.
``common_ops.abi3.so`` lies in the wheel (``sgl_kernel/sm90/``); needs a Hopper GPU.

Each case is held against float64 over the dequantized weights and the very FP8 activations: what remains is the rounding
of the output to BF16 (1.66e-3 relative RMS) and the kernel's own accumulation.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import torch

from truecast.casts import int4
from truecast.casts.bf16_to_mxfp4 import quantize as to_mxfp4
from truecast.formats.int4 import unpack

EXPERTS = 4
ROWS_A_EXPERT = 24


@dataclass(frozen=True)
class Problem:
    """Weights of all experts: codes ``[E, N, K]`` int8, scales ``[E, N, K/128]`` float32 that are BF16 numbers."""

    codes: np.ndarray
    scales: np.ndarray


def main() -> int:
    """Run all cases. Returns 1 if one is off."""
    torch.ops.load_library(sys.argv[1])
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    bad = 0
    for n, k in ((6144, 3584), (3584, 3072)):  # gate and up together; down
        rng = np.random.default_rng(n)
        activations = torch.from_numpy(rng.standard_normal((EXPERTS * ROWS_A_EXPERT, k)).astype(np.float32)).cuda()
        x = activations.to(torch.float8_e4m3fn)
        codes = rng.integers(-7, 8, (EXPERTS, n, k), dtype=np.int8)
        size = bf16(np.exp(rng.normal(-5, 0.5, (EXPERTS, n, k // 128))))
        signs = rng.choice([-1.0, 1.0], size.shape).astype(np.float32)
        positive = Problem(codes, size)
        cases = {
            "positive scales": positive,
            "scales of both signs": Problem(codes, size * signs),
            "all scales negative, codes negated": Problem(-codes, -size),
            "codes down to -8, both signs": Problem(rng.integers(-8, 8, codes.shape, dtype=np.int8), size * signs),
            "truecast's own, of Gaussian MXFP4": own(rng, n, k),
        }
        outputs = {name: run(problem, x) for name, problem in cases.items()}
        for name, problem in cases.items():
            error, slope = compare(problem, x, outputs[name])
            share = float((problem.scales < 0).mean())
            fine = error < 3e-3 and abs(slope) < 1e-3
            bad += not fine
            print(f"[{n}, {k}] {name:36} negative {share:5.1%}  error {error:.2e}  slope {slope:+.1e}"
                  f"  {'ok' if fine else 'WRONG'}")  # fmt: skip
        same = torch.equal(outputs["positive scales"], outputs["all scales negative, codes negated"])
        bad += not same
        print(f"[{n}, {k}] (s, q) and (-s, -q) give the same bits: {same}")
    print("result:", "negative scales compute right" if not bad else f"{bad} cases are off")
    return 1 if bad else 0


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to BF16, as float32."""
    return torch.from_numpy(values.astype(np.float32)).bfloat16().float().numpy()


def own(rng: np.random.Generator, n: int, k: int) -> Problem:
    """What truecast makes of a Gaussian matrix."""
    made = [int4.quantize(*to_mxfp4(rng.standard_normal((n, k)).astype(np.float32) / 50)) for _ in range(EXPERTS)]
    scales = [(m.scales.astype(np.uint32) << 16).view(np.float32) for m in made]
    return Problem(np.stack([unpack(m.codes) for m in made]), np.stack(scales))


def run(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """The kernel's output ``[rows, N]`` BF16."""
    experts, n, k = problem.codes.shape
    nibbles = (problem.codes.astype(np.uint8) & 15).reshape(experts, n, k // 2, 2)
    packed = torch.from_numpy((nibbles[..., 0] | nibbles[..., 1] << 4).view(np.int8)).cuda()
    groups = k // 128
    scales = torch.from_numpy(problem.scales).bfloat16().cuda()
    scales = scales.reshape(experts, n, groups // 4, 4).permute(0, 2, 1, 3).reshape(experts, groups // 4, n * 4)
    counts = torch.tensor([[n, ROWS_A_EXPERT, k]] * experts, dtype=torch.int32, device="cuda")
    offsets = torch.arange(experts, dtype=torch.int32, device="cuda") * ROWS_A_EXPERT
    in_strides = torch.full((experts, 3), k, dtype=torch.int64, device="cuda")
    out_strides = torch.full((experts, 3), n, dtype=torch.int64, device="cuda")
    out = torch.empty((x.shape[0], n), dtype=torch.bfloat16, device="cuda")
    torch.ops.sgl_kernel.cutlass_w4a8_moe_mm.default(
        out, x, packed, torch.ones(1, dtype=torch.float32, device="cuda"), scales.contiguous(), offsets, counts,
        in_strides, in_strides, out_strides, out_strides, 128, 16,
    )  # fmt: skip
    torch.cuda.synchronize()
    return out


def compare(problem: Problem, x: torch.Tensor, out: torch.Tensor) -> tuple[float, float]:
    """Relative RMS error, and slope minus one of the regression on float64."""
    weights = torch.from_numpy(problem.codes).cuda().double()
    weights *= torch.from_numpy(problem.scales).cuda().double().repeat_interleave(128, dim=2)
    rows = x.double().reshape(EXPERTS, ROWS_A_EXPERT, -1)
    truth = torch.einsum("erk,enk->ern", rows, weights).reshape(out.shape)
    error = (out.double() - truth).norm() / truth.norm()
    return float(error), float((out.double() * truth).sum() / (truth * truth).sum() - 1)


if __name__ == "__main__":
    sys.exit(main())
