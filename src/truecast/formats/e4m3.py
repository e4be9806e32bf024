"""E4M3 (the ``fn`` variant), the block scale of NVFP4 and the 8-bit float of FP8 weights.

Sign, four exponent bits (bias 7), three mantissa bits. No infinity; 0x7F and 0xFF are NaN; largest finite value 448.
Exponent field 0 is subnormal: steps of 2^-9. Every finite value is ``mantissa * 2^exponent`` with a mantissa 0..15.

Powers of two from 2^-9 (subnormal 0x01) to 2^8 (0x78) are exact, and only those.

Source: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433, table 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

MAX = 448.0
MIN_POW2 = -9
MAX_POW2 = 8
MIN_NORMAL_POW2 = -6
NAN_BYTES = (0x7F, 0xFF)


def _split(byte: int) -> tuple[int, int]:
    field, fraction = (byte >> 3) & 0x0F, byte & 0x07
    return (fraction, MIN_POW2) if field == 0 else (8 + fraction, field - 10)


MANTISSA: U8 = np.array([_split(b)[0] for b in range(256)], dtype=np.uint8)
"""Unsigned integer mantissa of each byte; magnitude = ``MANTISSA * 2^EXPONENT``. Meaningless for the NaN bytes."""

EXPONENT: NDArray[np.int8] = np.array([_split(b)[1] for b in range(256)], dtype=np.int8)
"""Exponent that goes with ``MANTISSA``."""

IS_NAN: NDArray[np.bool_] = np.isin(np.arange(256), NAN_BYTES)


def _decode_table() -> NDArray[np.float32]:
    values = np.ldexp(MANTISSA.astype(np.float32), EXPONENT.astype(np.int32))
    values[128:] = -values[128:]
    values[IS_NAN] = np.nan
    return values.astype(np.float32)


VALUES: NDArray[np.float32] = _decode_table()
"""Value of each of the 256 bytes."""


def decode(data: U8) -> NDArray[np.float32]:
    """Value of each byte. Shapes: ``[...]`` uint8 -> ``[...]`` float32; NaN for 0x7F and 0xFF. Exact."""
    return VALUES[data]


def encode_nearest_even(values: NDArray[np.floating]) -> U8:
    """Nearest byte; ties go to the even byte; finite values beyond 448 saturate; NaN becomes NaN, sign kept.

    Shapes: ``[...]`` float -> ``[...]`` uint8.
    Note: a plain cast in most libraries gives NaN beyond 464; a converter wants saturation, never a new NaN.
    """
    finite = VALUES[:0x7F].astype(np.float64)
    magnitude = np.abs(values.astype(np.float64))
    above = np.searchsorted(finite, magnitude, side="left").clip(0, len(finite) - 1)
    below = (above - 1).clip(0)
    up, down = finite[above] - magnitude, magnitude - finite[below]
    byte = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    byte = np.where(magnitude >= MAX, 0x7E, byte)
    byte = np.where(np.isnan(magnitude), 0x7F, byte)
    return np.asarray(byte | (np.signbit(values).astype(np.int64) << 7), dtype=np.uint8)


def pow2_byte(exponent: int) -> int:
    """Byte of ``2^exponent``. Raises: ValueError outside -9..8, where E4M3 holds no power of two."""
    if not MIN_POW2 <= exponent <= MAX_POW2:
        raise ValueError(f"E4M3 holds 2^d for d in {MIN_POW2}..{MAX_POW2}, got {exponent}")
    return 1 << (exponent - MIN_POW2) if exponent < MIN_NORMAL_POW2 else (exponent + 7) << 3
