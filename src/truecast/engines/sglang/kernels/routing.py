"""Where each route goes when routes are grouped by expert: ``dst[i]`` is route ``i``'s place in a stable sort by expert.

Routes are flat: token ``t``'s choice ``c`` is route ``t * topk + c``. Ids are expert numbers, with ``-1`` or one past the
last for an expert that is not here. No value is ever sorted: a route's place is the number of routes that go before it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from truecast.engines.sglang.kernels import expert_counts
from truecast.engines.sglang.kernels.expert_counts import bins_of, rank

SHORT = 4096
"""Up to so many routes each one is compared with all others, in one kernel; above, three kernels count."""

_ROWS, _BLOCK = 8, 1024


def plain(ids: Tensor, bins: int) -> Tensor:
    """``dst`` by counting, for ids in ``[-1, bins - 2]``. Shape: that of ``ids``, flat; int32."""
    one_hot = torch.nn.functional.one_hot(ids.reshape(-1).long() + 1, bins)
    before = (one_hot.cumsum(0) - one_hot).gather(1, ids.reshape(-1, 1).long() + 1)[:, 0]
    total = one_hot.sum(0)
    return ((total.cumsum(0) - total)[ids.reshape(-1).long() + 1] + before).int()


@triton.jit
def _compare(ids, dst, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # expert first, then position: no two keys are equal, and one comparison tells which route goes first
    mine = tl.load(ids + i, mask=i < n, other=0).to(tl.int32) * n + i
    count = tl.zeros([ROWS, BLOCK], tl.int32)
    for block in tl.static_range(BLOCKS):
        j = block * BLOCK + tl.arange(0, BLOCK)
        key = tl.load(ids + j, mask=j < n, other=0).to(tl.int32) * n + j
        key = tl.where(j < n, key, 2147483647)
        count += (key[None, :] < mine[:, None]).to(tl.int32)
    tl.store(dst + i, tl.sum(count, 1), mask=i < n)


@triton.jit
def _place(
    ids, before, totals, dst, n, BINS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr
):
    tile = tl.program_id(0)
    i = tile * TILE + tl.arange(0, TILE)
    bin = bins_of(ids, i, n, BINS)
    place = rank(ids, bin, tile * TILE, n, BINS, TILE, CHUNK)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    total = tl.load(totals + tl.arange(0, BINS))
    place += tl.load(before + tile * BINS + bin)
    place += tl.gather(tl.cumsum(total, 0) - total, bin, 0)
    tl.store(dst + i, place, mask=i < n)


def by_comparison(ids: Tensor) -> Tensor:
    """``dst`` in one kernel, for any ids of less than ``2**31 / n``; meant for up to :data:`SHORT` routes."""
    n = ids.numel()
    dst = torch.empty(n, dtype=torch.int32, device=ids.device)
    if n:
        blocks = triton.next_power_of_2(triton.cdiv(n, _BLOCK))  # a power of two, so that few kernels are compiled
        _compare[(triton.cdiv(n, _ROWS),)](ids, dst, n, ROWS=_ROWS, BLOCK=_BLOCK, BLOCKS=blocks, num_warps=8)
    return dst


def by_counting(ids: Tensor, bins: int) -> Tensor:
    """``dst`` in three kernels, for ids in ``[-1, bins - 2]``; ``bins`` is a power of two of at most ``MOST_BINS``."""
    n = ids.numel()
    dst = torch.empty(n, dtype=torch.int32, device=ids.device)
    if n == 0:
        return dst
    before, totals = expert_counts.before_tiles(ids, bins)
    tile = expert_counts.TILE
    _place[(triton.cdiv(n, tile),)](
        ids, before, totals, dst, n, BINS=bins, TILE=tile, CHUNK=expert_counts.CHUNK, num_warps=8,
        **expert_counts.early(ids.device),
    )  # fmt: skip
    return dst


def places(ids: Tensor, bins: int) -> Tensor:
    """``dst`` by the faster of the two ways. Shapes: any contiguous int tensor; flat int32 of as many elements."""
    assert ids.is_contiguous()
    return by_comparison(ids) if ids.numel() <= SHORT else by_counting(ids, bins)
