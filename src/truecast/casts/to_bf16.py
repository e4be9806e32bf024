"""Any quantized matrix -> BF16. Exact wherever BF16 can hold the values; the count of elements where it cannot is returned.

E2M1 times a power of two needs two significant bits, E2M1 times E4M3 six: both fit BF16's eight. What does not fit is
the product with a global scale that is no power of two, and magnitudes of 2^128 and more. INT4 times a BF16 scale needs
up to eleven bits, E4M3 times a float32 scale up to 28: many are rounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e2m1, e4m3, e8m0, int4, packing

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]

OVERFLOW_EXPONENT = 126
"""MXFP4 block exponents from here on can exceed BF16: 4 * 2^126 = 2^128."""


def from_mxfp4(packed: U8, scales: U8) -> tuple[U16, int]:
    """BF16 bit patterns and the number of inexact elements. Shapes: ``[N, K/2]``, ``[N, K/32]`` -> ``[N, K]`` uint16."""
    codes = packing.unpack_nibbles(packed).reshape(*scales.shape, 32)
    values = e2m1.decode(codes) * e8m0.decode(scales).astype(np.float64)[..., None]  # float32 would overflow unseen
    return _round(values.reshape(packed.shape[0], -1))


def from_nvfp4(packed: U8, scales: U8, global_scale: np.float32, divides: bool) -> tuple[U16, int]:
    """BF16 bit patterns and the number of inexact elements.

    Shapes: ``[N, K/2]``, ``[N, K/16]`` E4M3 bytes, global scale float32 (a divisor if ``divides``) -> ``[N, K]`` uint16.
    """
    codes = packing.unpack_nibbles(packed).reshape(*scales.shape, 16)
    block = e4m3.decode(scales).astype(np.float64)
    block = block / np.float64(global_scale) if divides else block * np.float64(global_scale)
    return _round((e2m1.decode(codes) * block[..., None]).reshape(packed.shape[0], -1))


def from_int4(packed: U8, scales: NDArray[np.float32]) -> tuple[U16, int]:
    """BF16 bit patterns and the number of inexact elements.

    Shapes: two's-complement codes ``[N, K/2]``, group scales ``[N, K/128]`` float32 -> ``[N, K]`` uint16.
    """
    values = int4.unpack(packed).reshape(*scales.shape, -1) * scales.astype(np.float64)[..., None]
    return _round(values.reshape(packed.shape[0], -1))


def from_fp8(codes: U8, scales: NDArray[np.float32], tile: tuple[int, int]) -> tuple[U16, int]:
    """BF16 bit patterns and the number of inexact elements.

    Shapes: E4M3 codes ``[N, K]``, scales ``[ceil(N/rows), ceil(K/columns)]`` float32 of tiles ``(rows, columns)``, 0 for
    the whole extent -> ``[N, K]`` uint16.
    """
    rows, cols = tile[0] or codes.shape[0], tile[1] or codes.shape[1]
    spread = scales.astype(np.float64)[np.arange(codes.shape[0]) // rows][:, np.arange(codes.shape[1]) // cols]
    return _round(e4m3.decode(codes) * spread)


def _round(values: NDArray[np.float64]) -> tuple[U16, int]:
    """Round to nearest even in one step (through float32 with round-to-odd, so that nothing is rounded twice)."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    bits = single.view(np.uint32)
    wide = single.astype(np.float64)
    bits = np.where(np.abs(wide) > np.abs(values), bits - 1, bits)  # towards zero
    bits = np.where((wide != values) & np.isfinite(single), bits | 1, bits).astype(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    result = rounded.astype(np.uint16)
    back = (result.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return result, int((back != values).sum())
