"""E8M0, the block scale of MXFP4: a bare exponent, value ``2^(byte - 127)``.

No sign, no mantissa, no zero, no infinity. Byte 255 is NaN. Byte 0 is the real value 2^-127, a float32 subnormal.

Source: OCP Microscaling Formats (MX) v1.0, section 5.4.1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

BIAS = 127
NAN = 0xFF


def exponents(scales: U8) -> NDArray[np.int16]:
    """Exponent ``k`` of each scale byte. Shapes: ``[...]`` uint8 -> ``[...]`` int16, -127..127; 255 would give 128.

    Callers refuse byte 255 first: it is not an exponent.
    """
    return scales.astype(np.int16) - BIAS


def decode(scales: U8) -> NDArray[np.float32]:
    """Value of each scale byte. Shapes: ``[...]`` uint8 -> ``[...]`` float32, NaN for byte 255. Exact."""
    with np.errstate(over="ignore"):  # byte 255 would be 2^128
        values = np.ldexp(np.float32(1), exponents(scales).astype(np.int32))
    return np.where(scales == NAN, np.float32(np.nan), values).astype(np.float32)


def encode(exponent: NDArray[np.integer]) -> U8:
    """Scale byte of ``2^exponent``. Shapes: ``[...]`` int -> ``[...]`` uint8.

    Raises: ValueError outside -127..127.
    """
    if exponent.size and (int(exponent.min()) < -BIAS or int(exponent.max()) > BIAS):
        raise ValueError(f"E8M0 holds exponents -127..127, got {int(exponent.min())}..{int(exponent.max())}")
    return (exponent + BIAS).astype(np.uint8)
