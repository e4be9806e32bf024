"""How an audit fits into memory: tile size, reading ahead, and how much of the states may stay in memory.

Resident memory is what the process has once both checkpoints are open, one or two layers of each side, what a tile needs
while it computes, and kept states. The last is what gives way, then the tile, then reading ahead.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from truecast.checkpoint.header import TensorInfo
from truecast.errors import RefusedError

TILE_TOKENS = {"cpu": 512, "cuda": 32768}
"""Rows that go through a layer together where memory allows. On a GPU enough that decoding an expert costs less than using
it; on a CPU few, so that runs with and without a cap on memory make the same tiles, and so the same roundings."""

MARGIN_BYTES = 64 << 20
"""What libraries allocate at the first product, and fragmentation."""

_LIVE = 14
"""Arrays of a layer's widest activation that exist at a time."""

_WIDENED = ("BF16", "F16")
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


@dataclass(frozen=True, slots=True)
class Fit:
    """The numbers of one run. ``scored_rows`` and ``vocabulary_tile`` bound the logits that exist at a time."""

    tile_tokens: int
    ahead: bool
    kept_bytes: int
    scored_rows: int
    vocabulary_tile: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What decides, in bytes of host memory: the largest layer of both sides together, what reading it takes besides,
    one token of a tile, both heads. ``longest`` and ``tokens``: of a document, of the corpus. ``on_device``: the largest
    layer of both sides where it lies on a GPU."""

    layer: int
    reading: int
    token: int
    head: int
    longest: int
    tokens: int
    on_device: int = 0


def loaded_bytes(tensors: Iterable[TensorInfo], dtype: torch.dtype) -> int:
    """What stored tensors take when loaded: packed ones as they are, 16-bit floats in the dtype of the run."""
    return sum(t.nbytes * dtype.itemsize // 2 if t.dtype in _WIDENED else t.nbytes for t in tensors)


def fit(memory: int | None, needs: Needs, device: torch.device) -> Fit:
    """Divide ``memory`` (bytes of resident memory; None: as it comes, kept states a quarter of what is free).

    Raises: RefusedError with the smallest workable number where one layer and the longest document do not fit.
    """
    tile = max(TILE_TOKENS[device.type], needs.longest)
    rows, vocabulary = (256, 2048) if device.type == "cpu" else (4096, 16384)
    both = True
    if device.type == "cuda":
        tile, both = _on_gpu(tile, needs, torch.cuda.mem_get_info(device)[0])
    if memory is None:
        available = _available()
        if device.type == "cpu" and (least := needs.layer + needs.longest * needs.token) > available:
            raise RefusedError(
                f"one layer of each checkpoint and the longest document ({needs.longest:,} tokens) need"
                f" {least / 1e9:,.1f} GB, {available / 1e9:,.1f} GB are free",
                where="memory",
                fix="split the document, or free memory",
            )
        return Fit(tile, both, available // 4, rows, vocabulary)
    fixed = resident_bytes() + MARGIN_BYTES + needs.reading + needs.layer
    least = max(fixed + needs.longest * needs.token, fixed - needs.layer + needs.head)
    if memory < least:
        raise RefusedError(
            f"{memory / 1e6:,.0f} MB are too few for one layer and the longest document ({needs.longest:,} tokens)",
            where="--memory",
            fix=f"the smallest that works is {-(-least // 10**6)}MB",
        )
    wanted = min(tile, needs.tokens) * needs.token
    ahead = both and memory >= fixed + needs.layer + needs.longest * needs.token
    free = memory - fixed - (needs.layer if ahead else 0)
    if wanted > free:
        tile = max(free // needs.token, needs.longest)
    kept = free - min(tile, needs.tokens) * needs.token
    return Fit(tile, ahead, max(0, min(kept, memory - least)), rows, vocabulary)


def _on_gpu(tile: int, needs: Needs, free: int) -> tuple[int, bool]:
    """Tile size, and whether a second layer of both sides fits, in ``free`` bytes of a GPU.

    Raises: RefusedError where one layer of both sides and the longest document do not fit.
    """
    usable = free - free // 10
    least = needs.on_device + needs.longest * needs.token
    if usable < least:
        raise RefusedError(
            f"one layer and the longest document ({needs.longest:,} tokens) need"
            f" {least / 1e9:,.1f} GB, {usable / 1e9:,.1f} GB of the GPU are free",
            where="--device cuda",
            fix="use --device cpu, or shorter documents",
        )
    wanted = min(tile, needs.tokens) * needs.token
    ahead = usable >= 2 * needs.on_device + min(wanted, usable // 4)
    room = usable - needs.on_device * (2 if ahead else 1)
    return max(needs.longest, min(tile, room // needs.token)), ahead


def bytes_of_token(hidden: int, widest: int, snapshots: int, dtype: torch.dtype) -> int:
    """What one row of a tile takes while a layer computes. ``widest``: the longest activation inside a layer."""
    return _LIVE * widest * max(4, dtype.itemsize) + 2 * (snapshots + 3) * hidden * dtype.itemsize


def resident_bytes() -> int:
    """Resident memory of this process now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _available() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 4 << 30


def return_freed_memory() -> None:
    """Make glibc give large blocks back when they are freed; elsewhere nothing is done.

    Its threshold grows with the blocks it sees freed, up to 32 MiB, and what lies below it stays in the heap: layer
    after layer that becomes a second layer's worth of resident memory.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_THRESHOLD, 1 << 20)
        library.mallopt(_TRIM_THRESHOLD, 8 << 20)


def trim() -> None:
    """Give free heap back to the system now."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
