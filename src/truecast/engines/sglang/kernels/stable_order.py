"""The routes of each expert in their own order: what ``moe_align_block_size`` makes, with the same rows in the same tile always.

``moe_align_block_size`` gives each expert a whole number of tiles of ``sorted_token_ids``, and deals its slots to routes by
atomic adds: in which tile a route comes to lie differs from call to call. Here the slots stay and the routes are written
into them again, first ones first. The slots behind an expert's last route, ``expert_ids`` and the count are not touched.
Nothing waits for the GPU, and nothing is allocated that depends on the routes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from truecast.engines.sglang.kernels.routing import _count, _over_tiles

SHORT = 4096
"""Up to so many routes each one is compared with those before it, in one kernel; above, three kernels count."""

MOST_BINS = 4096
_ROWS, _BLOCK = 16, 512
_TILE, _CHUNK = 256, 32
_TILES, _COLUMNS = 256, 32


def plain(ids: Tensor, tile: int, experts: int, slots: Tensor) -> None:
    """By sorting, for ids in ``[-1, experts - 1]``. ``slots`` is ``sorted_token_ids``, written in place."""
    bins = ids.reshape(-1).long() + 1
    order = torch.sort(bins, stable=True).indices
    counts = torch.zeros(experts + 1, dtype=torch.long, device=ids.device)
    counts.scatter_add_(0, bins, torch.ones_like(bins))
    padded = (counts + tile - 1) // tile * tile
    ahead = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
    places = ahead[bins[order]] + torch.arange(len(order), device=ids.device)
    slots.scatter_(0, places, order.to(slots.dtype))


@triton.jit
def _compare(ids, experts, padded, slots, n, most, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * ROWS
    i = first + tl.arange(0, ROWS)
    mine = tl.load(ids + i, mask=i < n, other=0).to(tl.int32)
    before = tl.zeros([ROWS, BLOCK], tl.int32)
    start = first * 0
    while start < first + ROWS:
        j = start + tl.arange(0, BLOCK)
        other = tl.load(ids + j, mask=j < n, other=-2).to(tl.int32)
        before += ((other[None, :] == mine[:, None]) & (j[None, :] < i[:, None])).to(tl.int32)
        start += BLOCK
    tiles = tl.load(padded) // tile
    lower = tl.zeros([ROWS, BLOCK], tl.int32)
    start = first * 0
    while start < tiles:
        j = start + tl.arange(0, BLOCK)
        expert = tl.load(experts + j, mask=j < tiles, other=2147483647)
        lower += (expert[None, :] < mine[:, None]).to(tl.int32)
        start += BLOCK
    place = tl.sum(lower, 1) * tile + tl.sum(before, 1)
    tl.store(slots + place, i, mask=(i < n) & (place < most))


@triton.jit
def _put(ids, counts, totals, slots, n, most, tile, BINS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr):
    group = tl.program_id(0)
    first = group * TILE
    i = first + tl.arange(0, TILE)
    bin = tl.load(ids + i, mask=i < n, other=0).to(tl.int32) + 1
    bin = tl.minimum(tl.maximum(bin, 0), BINS - 1)
    padded = (tl.load(totals + tl.arange(0, BINS)) + tile - 1) // tile * tile
    place = tl.gather(tl.cumsum(padded, 0) - padded, bin, 0)
    place += tl.load(counts + group * BINS + bin)
    rank = tl.zeros([TILE, CHUNK], tl.int32)
    for start in range(0, TILE, CHUNK):
        j = first + start + tl.arange(0, CHUNK)
        other = tl.load(ids + j, mask=j < n, other=0).to(tl.int32) + 1
        other = tl.minimum(tl.maximum(other, 0), BINS - 1)
        rank += ((other[None, :] == bin[:, None]) & (j[None, :] < i[:, None])).to(tl.int32)
    place += tl.sum(rank, 1)
    tl.store(slots + place, i, mask=(i < n) & (place < most))


def by_comparison(ids: Tensor, tile: int, slots: Tensor, expert_ids: Tensor, padded: Tensor) -> None:
    """In one kernel; meant for up to :data:`SHORT` routes. ``padded``: ``num_tokens_post_padded``."""
    n = ids.numel()
    if n:
        grid = (triton.cdiv(n, _ROWS),)
        _compare[grid](ids, expert_ids, padded, slots, n, slots.numel(), tile, ROWS=_ROWS, BLOCK=_BLOCK, num_warps=8)


def by_counting(ids: Tensor, tile: int, experts: int, slots: Tensor) -> None:
    """In three kernels, for at most :data:`MOST_BINS` - 1 experts."""
    n, bins = ids.numel(), triton.next_power_of_2(experts + 1)
    assert bins <= MOST_BINS, experts
    if n == 0:
        return
    groups = triton.cdiv(n, _TILE)
    counts = torch.empty(groups * bins, dtype=torch.int32, device=ids.device)
    totals = torch.empty(bins, dtype=torch.int32, device=ids.device)
    _count[(groups,)](ids, counts, n, BINS=bins, TILE=_TILE, num_warps=4)
    blocks = triton.next_power_of_2(triton.cdiv(groups, _TILES))
    _over_tiles[(triton.cdiv(bins, _COLUMNS),)](
        counts, totals, groups, BINS=bins, TILES=_TILES, COLUMNS=_COLUMNS, BLOCKS=blocks, num_warps=8
    )
    _put[(groups,)](
        ids, counts, totals, slots, n, slots.numel(), tile, BINS=bins, TILE=_TILE, CHUNK=_CHUNK, num_warps=8
    )


def put_in_order(ids: Tensor, tile: int, experts: int, slots: Tensor, expert_ids: Tensor, padded: Tensor) -> None:
    """By the faster way. ``ids``: contiguous experts of all routes, ``-1`` for one that is not here."""
    assert ids.is_contiguous()
    if ids.numel() <= SHORT:
        by_comparison(ids, tile, slots, expert_ids, padded)
    elif experts < MOST_BINS:
        by_counting(ids, tile, experts, slots)
    else:
        plain(ids, tile, experts, slots)
