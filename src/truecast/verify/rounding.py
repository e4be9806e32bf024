"""Rounding to BF16 and E4M3, to nearest and ties to even, once: this room's own, shared with no writer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

_INFINITY = 0x7F80
_LARGEST = 0x7E


def bf16_bits(values: F64) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """BF16 bit patterns of float64 values without NaN, and whether each is exact. Shapes: ``[...]``.

    What lies beyond the largest finite value becomes infinity.
    """
    magnitude = np.abs(values)
    binade = _binade(magnitude, -126)  # below it steps stay 2^-133
    steps = np.rint(np.ldexp(magnitude, (7 - binade).astype(np.int32)))  # scaling by powers of two is exact here
    exact = np.ldexp(steps, (binade - 7).astype(np.int32)) == magnitude
    bits = ((binade + 126) << 7) + steps.astype(np.int64)
    exact &= bits < _INFINITY
    bits = np.minimum(bits, _INFINITY) | (np.signbit(values).astype(np.int64) << 15)
    return bits.astype(np.uint16), np.asarray(exact)


def e4m3_bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """E4M3 bytes of finite float32 values; beyond 448 the largest. Shapes: ``[...]``."""
    magnitude = np.minimum(np.abs(values.astype(np.float64)), 512.0)
    binade = _binade(magnitude, -6)  # below it steps stay 2^-9
    steps = np.rint(np.ldexp(magnitude, (3 - binade).astype(np.int32))).astype(np.int64)
    byte = np.minimum(((binade + 6) << 3) + steps, _LARGEST)
    return np.asarray(byte | (np.signbit(values).astype(np.int64) << 7), dtype=np.uint8)


def _binade(magnitude: F64, least: int) -> NDArray[np.int64]:
    """Exponent of the power of two at or below each number, no less than ``least``; that for zero too."""
    exponent = np.frexp(magnitude)[1].astype(np.int64) - 1
    return np.where(magnitude == 0, least, np.maximum(exponent, least))
