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


def live_range(scales: U8, packed: U8) -> tuple[int, int] | None:
    """Smallest and largest exponent over the half blocks that are not all zero; None if all are.

    Shapes: scales ``[n]`` E8M0 bytes, packed ``[n, 16]``: the blocks to look at.
    """
    live = scales[(packed & 0x77).any(axis=-1)]
    return (int(live.min()) - e8m0.BIAS, int(live.max()) - e8m0.BIAS) if live.size else None


def reach_histogram(packed: U8, scales: U8) -> NDArray[np.int64]:
    """Histogram that decides m (``[255, 4, 4]``); add those of fused twins. Shapes: ``[N, K/2]``, ``[N, K/32]``."""
    k = np.repeat(e8m0.exponents(scales), 2, axis=-1)
    return exact.reach_histogram(k, exact.magnitude_masks(packed))


def cast(scales: U8, m: int, read_packed: Callable[[], U8]) -> tuple[U8 | None, U8, NVFP4Report]:
    """Cast one matrix under global scale 2^m.

    Shapes: scales ``[N, K/32]`` E8M0, ``read_packed()`` ``[N, K/2]`` -> packed ``[N, K/2]``, block scales ``[N, K/16]``
    E4M3. ``read_packed`` is called only where the codes matter; the packed result is None where they stay as they are.

    Exact: for every half block that is not in ``report.inexact``. All-zero half blocks keep their codes and get
    ``2^clamp(k-m, -9, 8)``. Byte 255 among the scales is the caller's to refuse.
    """
    block_scales = _twice(
        np.frombuffer(scales.tobytes().translate(block_scale_table(m)), np.uint8).reshape(scales.shape)
    )
    report = NVFP4Report(half_blocks=block_scales.size)
    packed = None
    if not block_scales.all():
        packed = read_packed().copy()
        _cast_outside_window(packed, scales, block_scales, np.argwhere(block_scales == 0), m, report)
        if not report.renormalised and not report.inexact:
            packed = None
    report.subnormal_scales = int(np.count_nonzero(block_scales < e4m3.pow2_byte(e4m3.MIN_NORMAL_POW2)))
    return packed, block_scales, report


def _cast_outside_window(
    packed: U8, scales: U8, block_scales: U8, outside: NDArray[np.int64], m: int, report: NVFP4Report
) -> None:
    """Fill in, in place, the half blocks (``outside``: ``[n, 2]`` row, half block) that the window does not hold."""
    rows, halves = outside[:, 0], outside[:, 1]
    groups = packed.reshape(packed.shape[0], -1, 8)
    bytes_ = groups[rows, halves]
    k = e8m0.exponents(scales[rows, halves // 2])
    d = k.astype(np.int64) - m
    clamped = d.clip(e4m3.MIN_POW2, e4m3.MAX_POW2)
    shift = d - clamped  # the codes must take up 2^shift
    masks = exact.magnitude_masks(bytes_)[:, 0]
    reachable = (shift >= -exact.REACH_DOWN[masks].astype(np.int64)) & (shift <= exact.REACH_UP[masks])
    zero = masks == 0
    block_scales[rows, halves] = [e4m3.pow2_byte(int(c)) for c in clamped]

    movable = reachable & ~zero
    codes = packing.unpack_nibbles(bytes_[movable])
    moved = exact.SHIFT_CODE[(shift[movable] + exact.MAX_SHIFT)[:, None], codes]
    groups[rows[movable], halves[movable]] = packing.pack_nibbles(moved)
    report.renormalised += int(movable.sum())

    lost = np.flatnonzero(~reachable & ~zero)
    for chunk in np.array_split(lost, max(1, -(-lost.size // 256))):  # bounds the [n, 126, 16] temporaries
        new_bytes, scale_bytes, errors, sums = _least_squares(bytes_[chunk], d[chunk])
        groups[rows[chunk], halves[chunk]], block_scales[rows[chunk], halves[chunk]] = new_bytes, scale_bytes
        report.inexact += [
            InexactHalfBlock(int(rows[i]), int(halves[i]) * 16, int(k[i]), _scaled(e, m), _scaled(t, m))
            for i, e, t in zip(chunk, errors, sums, strict=True)
        ]


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
