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

from truecast.engines.sglang.kernels import expert_counts
from truecast.engines.sglang.kernels.expert_counts import MOST_BINS, bins_of, rank

SHORT = 4096
"""Up to so many routes each one is compared with those before it, in one kernel; above, three kernels count."""

_ROWS, _BLOCK = 16, 512


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
def _put(
    ids, before, totals, slots, n, most, tile, BINS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0)
    i = group * TILE + tl.arange(0, TILE)
    bin = bins_of(ids, i, n, BINS)
    place = rank(ids, bin, group * TILE, n, BINS, TILE, CHUNK)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    padded = (tl.load(totals + tl.arange(0, BINS)) + tile - 1) // tile * tile
    place += tl.load(before + group * BINS + bin)
    place += tl.gather(tl.cumsum(padded, 0) - padded, bin, 0)
    tl.store(slots + place, i, mask=(i < n) & (place < most))


def by_comparison(ids: Tensor, tile: int, slots: Tensor, expert_ids: Tensor, padded: Tensor) -> None:
    """In one kernel; meant for up to :data:`SHORT` routes. ``padded``: ``num_tokens_post_padded``."""
    n = ids.numel()
    if n:
        grid = (triton.cdiv(n, _ROWS),)
        _compare[grid](ids, expert_ids, padded, slots, n, slots.numel(), tile, ROWS=_ROWS, BLOCK=_BLOCK, num_warps=8)


def by_counting(ids: Tensor, tile: int, experts: int, slots: Tensor) -> None:
    """In three kernels, for at most ``MOST_BINS`` - 1 experts."""
    n, bins = ids.numel(), triton.next_power_of_2(experts + 1)
    if n == 0:
        return
    before, totals = expert_counts.before_tiles(ids, bins)
    group = expert_counts.TILE
    _put[(triton.cdiv(n, group),)](
        ids, before, totals, slots, n, slots.numel(), tile, BINS=bins, TILE=group, CHUNK=expert_counts.CHUNK,
        num_warps=8, **expert_counts.early(ids.device),
    )  # fmt: skip


def put_in_order(ids: Tensor, tile: int, experts: int, slots: Tensor, expert_ids: Tensor, padded: Tensor) -> None:
    """By the faster way. ``ids``: contiguous experts of all routes, ``-1`` for one that is not here."""
    assert ids.is_contiguous()
    if ids.numel() <= SHORT:
        by_comparison(ids, tile, slots, expert_ids, padded)
    elif experts < MOST_BINS:
        by_counting(ids, tile, experts, slots)
    else:
        plain(ids, tile, experts, slots)
