"""SiTU and FP8 quantization in one pass over the gate and up projections' output: a Triton kernel.

One read of ``2 I`` BF16 and one write of ``I`` bytes a row. Rows past an expert's count are neither read nor written.
The real rows of all experts are one line of pieces, which the programs walk with the stride of the grid: so the grid
depends on the GPU and the shape and not on the rows there are, and an expert with most of the rows is everybody's.

Four special functions an element (two tanh, an exponential, a reciprocal) would take a Hopper as long as the memory does.
So tanh and the reciprocal are the hardware's (relative errors 2^-11, a 64th of half an E4M3 step, and 2^-23), and the
exponential is a polynomial (2^-13). Sigmoid is not made from tanh, for its small values would lose all their digits.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from truecast.engines.sglang.kernels import situ_fp8_plain
from truecast.engines.sglang.kernels.situ_fp8_plain import LARGEST, LEAST_AMAX, MOST_AMAX, Situ

_WALK = 32, 8
"""Programs for each of the GPU's processors, and elements for each thread at a time: 16 bytes of either half."""
_POLYNOMIAL = True
_AHEAD = False
"""Whether a program loads its next piece before it computes one."""
_FIRST_OUT = "evict_first"
"""What the input is to the L2 cache: read for the last time."""


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
def _power(x):
    """2^x for x in [-126, 126], by multiplications and additions."""
    shifted = x + 12582912.0  # 1.5 * 2^23: the last bits are x to the nearest integer
    part = x - (shifted - 12582912.0)
    y = ((0.0551716685 * part + 0.24261114) * part + 0.693260968) * part + 0.999928057
    # the integer goes to the exponent; what stands above it is shifted out
    return (y.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)).to(tl.float32, bitcast=True)


@triton.jit
def _sigmoid(x, HARDWARE: tl.constexpr, POLYNOMIAL: tl.constexpr):
    if HARDWARE:
        x = x * -1.4426950408889634
        if POLYNOMIAL:
            # (a NaN becomes a number here and is one again by the product with its tanh)
            decay = _power(tl.minimum(tl.maximum(x, -126.0), 126.0))
        else:
            decay = tl.inline_asm_elementwise(
                "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
            )
        y = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + decay], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        y = 1.0 / (1.0 + tl.exp(-x))
    return y


@triton.jit
def _situ(gate, up, beta, linear_beta, factor, LINEAR: tl.constexpr, HARDWARE: tl.constexpr, POLYNOMIAL: tl.constexpr):
    # (what is constant first: one multiplication)
    if LINEAR:
        y = _tanh(up * (1.0 / linear_beta), HARDWARE) * (factor * beta * linear_beta)
    else:
        y = up * (factor * beta)
    return y * (_tanh(gate * (1.0 / beta), HARDWARE) * _sigmoid(gate, HARDWARE, POLYNOMIAL))


@triton.jit
def _ends(counts, experts, most, EXPERTS: tl.constexpr):
    """Behind which of the real rows each expert ends."""
    e = tl.arange(0, EXPERTS)
    rows = tl.load(counts + e, mask=e < experts, other=0).to(tl.int32)
    return tl.cumsum(tl.minimum(tl.maximum(rows, 0), most), 0)


@triton.jit
def _row(real, ends, most, EXPERTS: tl.constexpr):
    """(its expert, its row in memory) of one of the real rows."""
    if EXPERTS == 1:
        expert = 0
        row = real.to(tl.int64)
    else:
        ended = ends <= real
        expert = tl.sum(ended.to(tl.int32), 0)
        row = expert.to(tl.int64) * most + (real - tl.max(tl.where(ended, ends, 0), 0))
    return expert, row


@triton.jit
def _load(x, row, column, width, inside, POLICY: tl.constexpr):
    source = x + row * (2 * width)
    gate = tl.load(source + column, mask=inside, other=0, eviction_policy=POLICY)
    up = tl.load(source + width + column, mask=inside, other=0, eviction_policy=POLICY)
    return gate, up


@triton.jit
def _quantize(
    x, out, scale, counts, experts, most, width, beta, linear_beta, LARGEST: tl.constexpr, LINEAR: tl.constexpr,
    HARDWARE: tl.constexpr, POLYNOMIAL: tl.constexpr, BLOCK: tl.constexpr, EXPERTS: tl.constexpr,
    SCALES: tl.constexpr, AHEAD: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    factor = 1.0 / tl.load(scale).to(tl.float32)
    ends = _ends(counts, experts, most, EXPERTS)
    pieces = (width + BLOCK - 1) // BLOCK
    total = tl.max(ends, 0) * pieces
    step = tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    if AHEAD:
        real = tl.program_id(0) // pieces
        column = (tl.program_id(0) - real * pieces) * BLOCK + lane
        expert, row = _row(real, ends, most, EXPERTS)
        gate, up = _load(x, row, column, width, (column < width) & (tl.program_id(0) < total), POLICY)
    for tile in range(tl.program_id(0), total, step):
        if AHEAD:
            real = (tile + step) // pieces
            next_column = (tile + step - real * pieces) * BLOCK + lane
            next_expert, next_row = _row(real, ends, most, EXPERTS)
            inside = (next_column < width) & (tile + step < total)
            next_gate, next_up = _load(x, next_row, next_column, width, inside, POLICY)
        else:
            real = tile // pieces
            column = (tile - real * pieces) * BLOCK + lane
            expert, row = _row(real, ends, most, EXPERTS)
            gate, up = _load(x, row, column, width, column < width, POLICY)
        if SCALES > 1:
            factor = 1.0 / tl.load(scale + expert).to(tl.float32)
        y = _situ(gate.to(tl.float32), up.to(tl.float32), beta, linear_beta, factor, LINEAR, HARDWARE, POLYNOMIAL)
        if not HARDWARE:  # the hardware's conversion saturates, and a NaN stays one
            y = tl.clamp(y, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + row * width + column, y.to(out.dtype.element_ty), mask=column < width)
        if AHEAD:
            expert, row, column, gate, up = next_expert, next_row, next_column, next_gate, next_up


@triton.jit
def _dynamic_scale(
    x, scale, counts, experts, most, width, beta, linear_beta, LARGEST: tl.constexpr, LEAST: tl.constexpr,
    MOST: tl.constexpr, LINEAR: tl.constexpr, HARDWARE: tl.constexpr, POLYNOMIAL: tl.constexpr, BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
):  # fmt: skip
    ends = _ends(counts, experts, most, EXPERTS)
    pieces = (width + BLOCK - 1) // BLOCK
    total = tl.max(ends, 0) * pieces
    largest = tl.zeros([BLOCK], dtype=tl.float32)
    for step in range(tl.program_id(0), total, tl.num_programs(0)):
        # from the end: what was written last, and what is read first afterwards, is in the L2 cache
        tile = total - 1 - step
        real = tile // pieces
        column = (tile - real * pieces) * BLOCK + tl.arange(0, BLOCK)
        _, row = _row(real, ends, most, EXPERTS)
        gate, up = _load(x, row, column, width, column < width, "")
        y = _situ(gate.to(tl.float32), up.to(tl.float32), beta, linear_beta, 1.0, LINEAR, HARDWARE, POLYNOMIAL)
        y = tl.abs(y)
        largest = tl.where(y > largest, y, largest)  # a NaN is not larger
    amax = tl.minimum(tl.maximum(tl.max(largest, axis=0), LEAST), MOST)
    tl.atomic_max(scale, amax / LARGEST)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _shape(x: Tensor) -> tuple[tuple[int], dict[str, int]]:
    """(grid, the kernels' BLOCK, EXPERTS and num_warps)."""
    experts, rows, width = x.shape[0], x.shape[1], x.shape[2] // 2
    processor, elements = _WALK
    block = next((b for b in (1024, 512, 256) if width % b == 0), min(1024, triton.next_power_of_2(width)))
    programs = min(experts * rows * triton.cdiv(width, block), _processors(x.device) * processor)
    return (max(1, programs),), {
        "BLOCK": block,
        "EXPERTS": triton.next_power_of_2(experts),
        "num_warps": max(1, min(8, block // (32 * elements))),
    }


def launch_quantize(x: Tensor, out: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """The kernel for :func:`.situ_fp8_plain.quantize`."""
    experts, rows, width = out.shape
    assert x.shape == (experts, rows, 2 * width) and x.is_contiguous() and out.is_contiguous()
    assert counts.shape == (experts,) and scale.numel() in (1, experts)
    grid, shape = _shape(x)
    with torch.cuda.device_of(x):
        _quantize[grid](
            x, out, scale, counts, experts, rows, width, float(form.beta), float(form.linear_beta or 1),
            LARGEST=LARGEST, LINEAR=form.linear_beta is not None, HARDWARE=x.is_cuda, POLYNOMIAL=_POLYNOMIAL,
            SCALES=min(2, scale.numel()), AHEAD=_AHEAD, POLICY=_FIRST_OUT, **shape,
        )  # fmt: skip


def launch_dynamic_scale(x: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """The kernel for :func:`.situ_fp8_plain.dynamic_scale`."""
    assert x.is_contiguous() and counts.shape == x.shape[:1] and scale.numel() == 1 and scale.dtype == torch.float32
    grid, shape = _shape(x)
    scale.zero_()
    with torch.cuda.device_of(x):
        _dynamic_scale[grid](
            x, scale, counts, x.shape[0], x.shape[1], x.shape[2] // 2, float(form.beta), float(form.linear_beta or 1),
            LARGEST=LARGEST, LEAST=LEAST_AMAX, MOST=MOST_AMAX, LINEAR=form.linear_beta is not None, HARDWARE=x.is_cuda,
            POLYNOMIAL=_POLYNOMIAL, **shape,
        )  # fmt: skip


def quantize(x: Tensor, out: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """See :func:`.situ_fp8_plain.quantize`: by the kernel on a GPU, by the plain form elsewhere."""
    (launch_quantize if x.is_cuda else situ_fp8_plain.quantize)(x, out, scale, counts, form)


def dynamic_scale(x: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """See :func:`.situ_fp8_plain.dynamic_scale`: by the kernel on a GPU, by the plain form elsewhere."""
    (launch_dynamic_scale if x.is_cuda else situ_fp8_plain.dynamic_scale)(x, scale, counts, form)
