"""MXFP4 -> NVFP4 under a given global scale 2^m: the codes stay, only the scales are rewritten.

``weight = code * 2^k`` becomes ``code * e4m3(2^(k-m)) * 2^m``. Where ``k - m`` leaves E4M3's window the sixteen codes
are shifted if their magnitudes allow (see :mod:`truecast.formats.exact`); where they do not, the half block is
requantized, if the caller allows it, to the pair of block scale and codes with the least squared error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e2m1, e4m3, e8m0, exact, packing

U8 = NDArray[np.uint8]

_POW2_BYTES = np.array([e4m3.pow2_byte(d) for d in range(e4m3.MIN_POW2, e4m3.MAX_POW2 + 1)], dtype=np.uint8)
_LEGAL_SCALES = np.arange(1, 0x7F, dtype=np.uint8)  # positive, finite, non-zero E4M3


@dataclass(frozen=True, slots=True)
class InexactHalfBlock:
    """A half block whose values changed. ``column`` is the first of its 16 elements; errors are in weight units."""

    row: int
    column: int
    source_exponent: int
    squared_error: float
    squared_sum: float


@dataclass(slots=True)
class NVFP4Report:
    """What the cast of one matrix did, in half blocks of 16 elements."""

    half_blocks: int = 0
    renormalised: int = 0
    subnormal_scales: int = 0
    subnormal_live: int = 0
    """Those of them whose codes are not all zero: exact, and read as nothing by engines that know normal scales only."""
    inexact: list[InexactHalfBlock] = field(default_factory=list)


@cache
def block_scale_table(m: int) -> bytes:
    """E4M3 byte for each of the 256 E8M0 bytes under global scale 2^m, 0 where ``2^(k-m)`` is no E4M3 value."""
    table = bytearray(256)
    for d in range(e4m3.MIN_POW2, e4m3.MAX_POW2 + 1):
        if 0 <= d + m + e8m0.BIAS < e8m0.NAN:
            table[d + m + e8m0.BIAS] = e4m3.pow2_byte(d)
    return bytes(table)


def _twice(scales: U8) -> U8:
    """Each byte twice: one 32-block's scale for both its half blocks. Shapes: ``[N, G]`` -> ``[N, 2G]``."""
    return (scales.astype("<u2") * np.uint16(0x0101)).view(np.uint8)


def reach_histogram(packed: U8, scales: U8) -> NDArray[np.int64]:
    """Histogram that decides m (``[255, 4, 4]``); add those of fused twins. Shapes: ``[N, K/2]``, ``[N, K/32]``."""
    k = np.repeat(e8m0.exponents(scales), 2, axis=-1)
    return exact.reach_histogram(k, exact.magnitude_masks(packed))


ReadBlocks = Callable[[NDArray[np.int64], NDArray[np.int64]], U8]
"""Gives the packed codes of some blocks: rows ``[n]`` and block numbers ``[n]`` -> ``[n, 16]`` bytes."""


@dataclass(frozen=True, slots=True)
class CodeChanges:
    """Half blocks whose codes are to be replaced: rows ``[n]``, half blocks ``[n]``, packed ``[n, 8]``."""

    rows: NDArray[np.int64]
    halves: NDArray[np.int64]
    packed: U8

    def apply(self, packed: U8) -> U8:
        """A copy of the packed codes ``[N, K/2]`` with these half blocks replaced."""
        changed = packed.copy()
        changed.reshape(packed.shape[0], -1, 8)[self.rows, self.halves] = self.packed
        return changed


def cast(scales: U8, m: int, read_blocks: ReadBlocks) -> tuple[U8, CodeChanges | None, NVFP4Report]:
    """Cast one matrix under global scale 2^m.

    Shapes: scales ``[N, K/32]`` E8M0 -> block scales ``[N, K/16]`` E4M3, and the changes to the codes, None where they
    all stay as they are. ``read_blocks`` is asked only for the blocks that E4M3's window does not hold, or holds as subnormal.

    Exact: for every half block that is not in ``report.inexact``. All-zero half blocks keep their codes and get
    ``2^clamp(k-m, -9, 8)``. Byte 255 among the scales is the caller's to refuse.
    """
    blocks = np.frombuffer(scales.tobytes().translate(block_scale_table(m)), np.uint8).reshape(scales.shape)
    block_scales = _twice(blocks)
    report = NVFP4Report(half_blocks=block_scales.size)
    changes = None
    if not blocks.all():
        rows, groups = np.nonzero(blocks == 0)
        d = e8m0.exponents(scales[rows, groups]).astype(np.int64) - m
        halves = read_blocks(rows, groups).reshape(-1, 8)
        half_numbers = np.stack([2 * groups, 2 * groups + 1], axis=-1).ravel()
        changes = _cast_outside_window(
            halves, np.repeat(d, 2), np.repeat(rows, 2), half_numbers, block_scales, m, report
        )
    subnormal = block_scales < e4m3.pow2_byte(e4m3.MIN_NORMAL_POW2)
    report.subnormal_scales = int(np.count_nonzero(subnormal))
    if report.subnormal_scales:
        rows, halves_there = np.nonzero(subnormal)
        masks = exact.magnitude_masks(read_blocks(rows, halves_there // 2))
        report.subnormal_live = int(np.count_nonzero(masks[np.arange(rows.size), halves_there % 2]))
    return block_scales, changes, report


def _cast_outside_window(
    packed: U8,
    d: NDArray[np.int64],
    rows: NDArray[np.int64],
    halves: NDArray[np.int64],
    block_scales: U8,
    m: int,
    report: NVFP4Report,
) -> CodeChanges | None:
    """Fill in ``block_scales`` for half blocks outside the window; returns the changes to their codes.

    Shapes: packed ``[n, 8]``, and d, row and half block of each ``[n]``.
    """
    clamped = d.clip(e4m3.MIN_POW2, e4m3.MAX_POW2)
    shift = d - clamped  # the codes must take up 2^shift
    masks = exact.magnitude_masks(packed)[:, 0]
    zero = masks == 0
    reachable = (shift >= -exact.REACH_DOWN[masks].astype(np.int64)) & (shift <= exact.REACH_UP[masks])
    block_scales[rows, halves] = _POW2_BYTES[clamped - e4m3.MIN_POW2]

    movable = np.flatnonzero(reachable & ~zero)
    moved = exact.SHIFT_CODE[(shift[movable] + exact.MAX_SHIFT)[:, None], packing.unpack_nibbles(packed[movable])]
    report.renormalised += movable.size
    lost = np.flatnonzero(~reachable & ~zero)
    new = [packing.pack_nibbles(moved)]
    for chunk in np.array_split(lost, max(1, -(-lost.size // 256))):  # bounds the [n, 126, 16] temporaries
        new_bytes, scale_bytes, errors, sums = _least_squares(packed[chunk], d[chunk])
        block_scales[rows[chunk], halves[chunk]] = scale_bytes
        new.append(new_bytes)
        report.inexact += [
            InexactHalfBlock(int(rows[i]), int(halves[i]) * 16, int(d[i]) + m, _scaled(e, m), _scaled(t, m))
            for i, e, t in zip(chunk, errors, sums, strict=True)
        ]
    changed = np.concatenate([movable, lost])
    return CodeChanges(rows[changed], halves[changed], np.concatenate(new)) if changed.size else None


def _scaled(squares: float, m: int) -> float:
    """Squares in units of the global scale -> weight units; beyond float64's range it is infinity or zero."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(np.float64(squares), 2 * m))


def _least_squares(half_blocks: U8, d: NDArray[np.int64]) -> tuple[U8, U8, NDArray[np.float64], NDArray[np.float64]]:
    """Best legal E4M3 scale and codes for ``code * 2^d``: every scale is tried; ties go to the smaller scale.

    Shapes: half_blocks ``[n, 8]`` packed, d ``[n]`` -> packed ``[n, 8]``, scale bytes ``[n]``, squared errors and
    squared sums ``[n]`` in units of 2^(2m).
    """
    codes = packing.unpack_nibbles(half_blocks)
    values = np.ldexp(e2m1.decode(codes).astype(np.float64), d[:, None])[:, None, :]
    scales = e4m3.decode(_LEGAL_SCALES).astype(np.float64)[None, :, None]
    candidates = e2m1.encode_nearest_even(values / scales)
    errors = np.square(e2m1.decode(candidates) * scales - values).sum(axis=-1)
    best = errors.argmin(axis=-1)
    n = np.arange(len(best))
    return (
        packing.pack_nibbles(candidates[n, best]),
        _LEGAL_SCALES[best],
        errors[n, best],
        np.square(values).sum((1, 2)),
    )
