"""SiTU and FP8 quantization in one pass over the gate and up projections' output: a Triton kernel.

One read of ``2 I`` BF16 and one write of ``I`` bytes a row. Rows past an expert's count are neither read nor written.
Programs walk over pieces of rows with the stride of the grid, so the grid depends on the GPU and not on the rows there
might be. On a GPU tanh is the hardware's (relative error 2^-11, a 64th of half an E4M3 step); sigmoid is not, for its
small values would lose all their digits.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from truecast.engines.sglang.kernels import situ_fp8_plain
from truecast.engines.sglang.kernels.situ_fp8_plain import LARGEST, LEAST_AMAX, MOST_AMAX, Situ

_A_PROCESSOR = 32
"""Programs for each of the GPU's processors: more than run at once, so that no expert with many rows is the last."""
_ELEMENTS = 8
"""For each thread at a time: 16 bytes of either half."""


@triton.jit
def _tanh(x, HARDWARE: tl.constexpr):
    if HARDWARE:
        y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        decay = tl.exp(-2.0 * tl.abs(x))
        far = (1.0 - decay) / (1.0 + decay)
        y = tl.where(tl.abs(x) < 0.02, x - x * x * x / 3.0, tl.where(x < 0, -far, far))
    return y


@triton.jit
def _situ(gate, up, beta, linear_beta, factor, LINEAR: tl.constexpr, HARDWARE: tl.constexpr):
    # (what is constant first: one multiplication)
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    if LINEAR:
        y = _tanh(up * (1.0 / linear_beta), HARDWARE) * (factor * beta * linear_beta)
    else:
        y = up * (factor * beta)
    return y * _tanh(gate * (1.0 / beta), HARDWARE) * sigmoid


@triton.jit
def _quantize(
    x, out, scale, counts, most, width, scale_stride, beta, linear_beta,
    LARGEST: tl.constexpr, LINEAR: tl.constexpr, HARDWARE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(1).to(tl.int64)
    factor = 1.0 / tl.load(scale + expert * scale_stride).to(tl.float32)
    rows = tl.minimum(tl.load(counts + expert), most).to(tl.int32)
    pieces = (width + BLOCK - 1) // BLOCK
    x += expert * most * (2 * width)
    out += expert * most * width
    for tile in range(tl.program_id(0), rows * pieces, tl.num_programs(0)):
        row = tile // pieces
        column = (tile - row * pieces) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        source = x + row.to(tl.int64) * (2 * width)
        gate = tl.load(source + column, mask=inside, other=0).to(tl.float32)
        up = tl.load(source + width + column, mask=inside, other=0).to(tl.float32)
        y = _situ(gate, up, beta, linear_beta, factor, LINEAR, HARDWARE)
        y = tl.clamp(y, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + row.to(tl.int64) * width + column, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _dynamic_scale(
    x, scale, counts, most, width, beta, linear_beta,
    LARGEST: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr, LINEAR: tl.constexpr, HARDWARE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(1).to(tl.int64)
    rows = tl.minimum(tl.load(counts + expert), most).to(tl.int32)
    pieces = (width + BLOCK - 1) // BLOCK
    x += expert * most * (2 * width)
    largest = tl.zeros([BLOCK], dtype=tl.float32)
    for tile in range(tl.program_id(0), rows * pieces, tl.num_programs(0)):
        row = tile // pieces
        column = (tile - row * pieces) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        source = x + row.to(tl.int64) * (2 * width)
        gate = tl.load(source + column, mask=inside, other=0).to(tl.float32)
        up = tl.load(source + width + column, mask=inside, other=0).to(tl.float32)
        y = tl.abs(_situ(gate, up, beta, linear_beta, 1.0, LINEAR, HARDWARE))
        largest = tl.where(y > largest, y, largest)  # a NaN is not larger
    amax = tl.minimum(tl.maximum(tl.max(largest, axis=0), LEAST), MOST)
    tl.atomic_max(scale, amax / LARGEST)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _shape(x: Tensor) -> tuple[tuple[int, int], int, int]:
    """(grid, columns a piece, warps)."""
    experts, rows, width = x.shape[0], x.shape[1], x.shape[2] // 2
    block = next((b for b in (1024, 512, 256) if width % b == 0), min(1024, triton.next_power_of_2(width)))
    programs = min(rows * triton.cdiv(width, block), triton.cdiv(_processors(x.device) * _A_PROCESSOR, experts))
    return (max(1, programs), experts), block, max(1, min(8, block // (32 * _ELEMENTS)))


def launch_quantize(x: Tensor, out: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """The kernel for :func:`.situ_fp8_plain.quantize`."""
    experts, rows, width = out.shape
    assert x.shape == (experts, rows, 2 * width) and x.is_contiguous() and out.is_contiguous()
    assert counts.shape == (experts,) and scale.numel() in (1, experts)
    grid, block, warps = _shape(x)
    with torch.cuda.device_of(x):
        _quantize[grid](
            x, out, scale, counts, rows, width, int(scale.numel() > 1), float(form.beta), float(form.linear_beta or 1),
            LARGEST=LARGEST, LINEAR=form.linear_beta is not None, HARDWARE=x.is_cuda, BLOCK=block, num_warps=warps,
        )  # fmt: skip


def launch_dynamic_scale(x: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """The kernel for :func:`.situ_fp8_plain.dynamic_scale`."""
    assert x.is_contiguous() and counts.shape == x.shape[:1] and scale.numel() == 1 and scale.dtype == torch.float32
    grid, block, warps = _shape(x)
    scale.zero_()
    with torch.cuda.device_of(x):
        _dynamic_scale[grid](
            x, scale, counts, x.shape[1], x.shape[2] // 2, float(form.beta), float(form.linear_beta or 1),
            LARGEST=LARGEST, LEAST=LEAST_AMAX, MOST=MOST_AMAX, LINEAR=form.linear_beta is not None, HARDWARE=x.is_cuda,
            BLOCK=block, num_warps=warps,
        )  # fmt: skip


def quantize(x: Tensor, out: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """See :func:`.situ_fp8_plain.quantize`: by the kernel on a GPU, by the plain form elsewhere."""
    (launch_quantize if x.is_cuda else situ_fp8_plain.quantize)(x, out, scale, counts, form)


def dynamic_scale(x: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """See :func:`.situ_fp8_plain.dynamic_scale`: by the kernel on a GPU, by the plain form elsewhere."""
    (launch_dynamic_scale if x.is_cuda else situ_fp8_plain.dynamic_scale)(x, scale, counts, form)
