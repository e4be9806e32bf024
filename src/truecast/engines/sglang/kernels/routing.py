"""Where each route goes when routes are grouped by expert: ``dst[i]`` is route ``i``'s place in a stable sort by expert.

Routes are flat: token ``t``'s choice ``c`` is route ``t * topk + c``. Ids are expert numbers, with ``-1`` or one past the
last for an expert that is not here. No value is ever sorted: a route's place is the number of routes that go before it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SHORT = 4096
"""Up to so many routes each one is compared with all others, in one kernel; above, three kernels count."""

MOST_BINS = 4096
_ROWS, _BLOCK = 8, 1024
_TILE, _CHUNK = 256, 32
_TILES, _COLUMNS = 256, 32


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
def _count(ids, counts, n, BINS: tl.constexpr, TILE: tl.constexpr):
    tile = tl.program_id(0)
    i = tile * TILE + tl.arange(0, TILE)
    bin = tl.load(ids + i, mask=i < n, other=-1).to(tl.int32) + 1
    bin = tl.minimum(tl.maximum(bin, 0), BINS - 1)
    found = tl.histogram(bin, BINS)
    b = tl.arange(0, BINS)
    past = tl.maximum(tile * TILE + TILE - n, 0)  # what was read as -1 behind the end
    tl.store(counts + tile * BINS + b, found - tl.where(b == 0, past, 0))


@triton.jit
def _over_tiles(
    counts, totals, tiles, BINS: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr
):
    b = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    carry = tl.zeros([COLUMNS], tl.int32)
    for block in range(BLOCKS):
        t = block * TILES + tl.arange(0, TILES)
        where = counts + t[:, None] * BINS + b[None, :]
        inside = (t < tiles)[:, None] & (b < BINS)[None, :]
        here = tl.load(where, mask=inside, other=0)
        tl.store(where, tl.cumsum(here, 0) - here + carry[None, :], mask=inside)
        carry += tl.sum(here, 0)
    tl.store(totals + b, carry, mask=b < BINS)


@triton.jit
def _place(ids, counts, totals, dst, n, BINS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr):
    tile = tl.program_id(0)
    first = tile * TILE
    i = first + tl.arange(0, TILE)
    bin = tl.load(ids + i, mask=i < n, other=0).to(tl.int32) + 1
    bin = tl.minimum(tl.maximum(bin, 0), BINS - 1)
    total = tl.load(totals + tl.arange(0, BINS))
    base = tl.gather(tl.cumsum(total, 0) - total, bin, 0)
    base += tl.load(counts + tile * BINS + bin)
    rank = tl.zeros([TILE, CHUNK], tl.int32)
    for start in range(0, TILE, CHUNK):
        j = first + start + tl.arange(0, CHUNK)
        other = tl.load(ids + j, mask=j < n, other=0).to(tl.int32) + 1
        other = tl.minimum(tl.maximum(other, 0), BINS - 1)
        rank += ((other[None, :] == bin[:, None]) & (j[None, :] < i[:, None])).to(tl.int32)
    tl.store(dst + i, base + tl.sum(rank, 1), mask=i < n)


def by_comparison(ids: Tensor) -> Tensor:
    """``dst`` in one kernel, for any ids of less than ``2**31 / n``; meant for up to :data:`SHORT` routes."""
    n = ids.numel()
    dst = torch.empty(n, dtype=torch.int32, device=ids.device)
    if n:
        blocks = triton.next_power_of_2(triton.cdiv(n, _BLOCK))  # a power of two, so that few kernels are compiled
        _compare[(triton.cdiv(n, _ROWS),)](ids, dst, n, ROWS=_ROWS, BLOCK=_BLOCK, BLOCKS=blocks, num_warps=8)
    return dst


def by_counting(ids: Tensor, bins: int) -> Tensor:
    """``dst`` in three kernels, for ids in ``[-1, bins - 2]``; ``bins`` is a power of two of at most :data:`MOST_BINS`."""
    assert bins == triton.next_power_of_2(bins) <= MOST_BINS, bins
    n = ids.numel()
    dst = torch.empty(n, dtype=torch.int32, device=ids.device)
    if n == 0:
        return dst
    tiles = triton.cdiv(n, _TILE)
    counts = torch.empty(tiles * bins, dtype=torch.int32, device=ids.device)
    totals = torch.empty(bins, dtype=torch.int32, device=ids.device)
    _count[(tiles,)](ids, counts, n, BINS=bins, TILE=_TILE, num_warps=4)
    blocks = triton.next_power_of_2(triton.cdiv(tiles, _TILES))
    _over_tiles[(triton.cdiv(bins, _COLUMNS),)](
        counts, totals, tiles, BINS=bins, TILES=_TILES, COLUMNS=_COLUMNS, BLOCKS=blocks, num_warps=8
    )
    _place[(tiles,)](ids, counts, totals, dst, n, BINS=bins, TILE=_TILE, CHUNK=_CHUNK, num_warps=8)
    return dst


def places(ids: Tensor, bins: int) -> Tensor:
    """``dst`` by the faster of the two ways. Shapes: any contiguous int tensor; flat int32 of as many elements."""
    assert ids.is_contiguous()
    return by_comparison(ids) if ids.numel() <= SHORT else by_counting(ids, bins)
