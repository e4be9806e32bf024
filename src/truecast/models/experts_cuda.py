"""Adding an expert's weighted outputs to its tokens' sums on a CUDA device: one Triton kernel.

A token occurs once among an expert's, so no two programs write to one place, and the result is the same in each run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARPS = 4


@triton.jit
def _kernel(sums, tokens, shares, values, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + n)
    share = tl.load(shares + n)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < WIDTH
        value = tl.load(values + n * WIDTH + column, mask=inside, other=0).to(tl.float32)
        before = tl.load(sums + token * WIDTH + column, mask=inside, other=0)
        tl.store(sums + token * WIDTH + column, before + share * value, mask=inside)


def add_weighted(sums: Tensor, tokens: Tensor, shares: Tensor, values: Tensor) -> None:
    """``sums[tokens] += shares * values``. No token twice.

    Shapes: ``[N, d]`` float32, ``[n]`` int64, ``[n]`` float32, ``[n, d]``; the first and the last contiguous.
    """
    assert sums.is_contiguous() and values.is_contiguous() and sums.dtype == shares.dtype == torch.float32
    width = sums.shape[1]
    block = min(1024, triton.next_power_of_2(width))
    with torch.cuda.device_of(sums):
        _kernel[(tokens.shape[0],)](sums, tokens, shares, values, WIDTH=width, BLOCK=block, num_warps=_WARPS)
