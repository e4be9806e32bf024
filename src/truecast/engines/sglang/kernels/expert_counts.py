"""How many routes of each expert go before a tile of routes, and before a route within its tile.

What a map of routes is made of: :mod:`.routing` and :mod:`.stable_order` add both and write. Three kernels in all: counts of
each tile, sums over the tiles, and the map's own, which ranks the routes of its tile meanwhile. Where the GPU can (from
Hopper on), each starts before the one before has ended and waits for it where it reads what that wrote.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_BINS = 4096
TILE, CHUNK = 256, 32
"""Routes that one program counts and places, and how many of them each is compared with at a time."""
_TILES, _COLUMNS = 256, 16


@triton.jit
def bins_of(ids, i, n, BINS: tl.constexpr):
    """``id + 1`` within ``[0, BINS - 1]``."""
    bin = tl.load(ids + i, mask=i < n, other=0).to(tl.int32) + 1
    return tl.minimum(tl.maximum(bin, 0), BINS - 1)


@triton.jit
def rank(ids, bin, first, n, BINS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """How many routes of the tile that begins at ``first`` go before each one and have its bin."""
    at = tl.arange(0, TILE)
    before = tl.zeros([TILE, CHUNK], tl.int32)
    for start in tl.static_range(0, TILE, CHUNK):  # unrolled: all loads are under way at once
        j = start + tl.arange(0, CHUNK)
        other = bins_of(ids, first + j, n, BINS)
        before += ((other[None, :] == bin[:, None]) & (j[None, :] < at[:, None])).to(tl.int32)
    return tl.sum(before, 1)


@triton.jit
def _count(ids, counts, n, BINS: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.program_id(0)
    i = tile * TILE + tl.arange(0, TILE)
    found = tl.histogram(bins_of(ids, i, n, BINS), BINS, mask=i < n)
    tl.store(counts + tile * BINS + tl.arange(0, BINS), found.to(tl.int16))


@triton.jit(do_not_specialize=["tiles"])
def _over_tiles(
    counts, before, totals, tiles, BINS: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    carry = tl.zeros([COLUMNS], tl.int32)
    for block in range(BLOCKS):
        t = block * TILES + tl.arange(0, TILES)
        where = t[:, None] * BINS + b[None, :]
        inside = (t < tiles)[:, None] & (b < BINS)[None, :]
        here = tl.load(counts + where, mask=inside, other=0).to(tl.int32)
        tl.store(before + where, tl.cumsum(here, 0) - here + carry[None, :], mask=inside)
        carry += tl.sum(here, 0)
    tl.store(totals + b, carry, mask=b < BINS)


@cache
def early(device: torch.device) -> dict[str, Any]:
    """What a kernel that waits is launched with: ``EARLY`` of its own, and ``launch_pdl`` of Triton's."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9:
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


def before_tiles(ids: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """(of each tile and bin, the routes in tiles before; of each bin, all routes), both flat int32, for ids in ``[-1, bins - 2]``.

    ``bins`` is a power of two of at most :data:`MOST_BINS`. The caller's kernel is the next one, waits
    (``tl.extra.cuda.gdc_wait``) where :func:`early` says ``EARLY``, and writes nothing before that.
    """
    assert bins == triton.next_power_of_2(bins) <= MOST_BINS, bins
    n = ids.numel()
    tiles = triton.cdiv(n, TILE)
    counts = torch.empty(tiles * bins, dtype=torch.int16, device=ids.device)
    before = torch.empty(tiles * bins, dtype=torch.int32, device=ids.device)
    totals = torch.empty(bins, dtype=torch.int32, device=ids.device)
    launch = early(ids.device)
    # (the first waits for all that was before it, as any kernel does: so those behind it may read ids before they wait)
    _count[(tiles,)](ids, counts, n, BINS=bins, TILE=TILE, EARLY=launch["EARLY"], num_warps=4)
    height = min(_TILES, triton.next_power_of_2(tiles))
    blocks = triton.next_power_of_2(triton.cdiv(tiles, height))
    _over_tiles[(triton.cdiv(bins, _COLUMNS),)](
        counts, before, totals, tiles, BINS=bins, TILES=height, COLUMNS=_COLUMNS, BLOCKS=blocks, num_warps=8, **launch
    )
    return before, totals
