"""BF16 (or float32) -> MXFP4: 32 values share one power of two, each becomes the nearest E2M1 code.

The rule of the OCP MX specification, no search and no calibration:

* **Block scale.** ``k = floor(log2(amax)) - 2``, where 2 is the exponent of E2M1's largest binade (4 and 6), held to
  -127..127. So ``amax / 2^k`` lies in [4, 8) wherever ``k`` was not held. The exponent is read off the float
  (``frexp``), never through a logarithm: ``log2`` rounds up just below a power of two.
* **Codes.** ``value / 2^k`` to the nearest code, ties to the even one; what lies above 6 saturates. Minus zero, and
  negative values that round to zero, give code 8.
* **All-zero block.** ``amax = 0`` has no logarithm; the scale is byte 0 (2^-127), the limit of the rule and what
  Kimi-K3 stores. The codes are zeros with their signs.
* **Refused.** NaN and infinity: there is no code for them, and one of them would decide the scale of its block.

Source: OCP Microscaling Formats (MX) v1.0, sections 5.3.3 (E2M1), 5.4.1 (E8M0) and 6.3 (conversion from scalars).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e2m1, e8m0, packing

U8 = NDArray[np.uint8]

BLOCK = 32
"""Elements along ``in`` that share one scale."""

_EMAX_E2M1 = 2


def quantize(values: NDArray[np.float32]) -> tuple[U8, U8]:
    """Quantize a weight matrix.

    Shapes: ``[N, K]`` float32 (BF16 widened) -> packed codes ``[N, K/2]`` uint8, low nibble first, and E8M0 scales
    ``[N, K/32]`` uint8.
    Error bound: ``|value - result| <= 2^k`` up to ``6 * 2^k`` (half the widest step), ``< 2 * 2^k`` where it saturates.
    Raises: ValueError if K is no multiple of 32, or for NaN or infinity, naming row and block.
    """
    if values.ndim != 2 or values.shape[1] % BLOCK:
        raise ValueError(f"expected [N, K] with K a multiple of {BLOCK}, got {list(values.shape)}")
    blocks = values.reshape(values.shape[0], values.shape[1] // BLOCK, BLOCK)
    amax = np.abs(blocks).max(axis=-1)
    if not np.isfinite(amax).all():
        row, block = (int(i) for i in np.argwhere(~np.isfinite(amax))[0])
        raise ValueError(f"row {row}, block {block}: holds NaN or infinity, which MXFP4 cannot store")
    exponent = shared_exponents(amax)
    codes = e2m1.encode_nearest_even(np.ldexp(blocks, -exponent[..., None]))
    return packing.pack_nibbles(codes.reshape(values.shape)), e8m0.encode(exponent)


def shared_exponents(amax: NDArray[np.float32]) -> NDArray[np.int32]:
    """Exponent ``k`` for each block maximum. Shapes: ``[...]`` float32, finite, >= 0 -> ``[...]`` int32, -127..127."""
    _, above = np.frexp(amax)  # amax = f * 2^above with f in [0.5, 1), so floor(log2(amax)) = above - 1
    exponent = np.clip(above - 1 - _EMAX_E2M1, -e8m0.BIAS, e8m0.BIAS).astype(np.int32)
    return np.where(amax == 0, np.int32(-e8m0.BIAS), exponent)
