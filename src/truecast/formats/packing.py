"""Two 4-bit codes a byte, the even element in the low nibble.

Every MXFP4 and NVFP4 dialect that truecast reads packs this way, so packed bytes can travel between them untouched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]


def unpack_nibbles(packed: U8) -> U8:
    """Split each byte into its two codes, low nibble first.

    Shapes: ``[..., n]`` uint8 -> ``[..., 2n]`` uint8 with values 0..15.
    """
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), dtype=np.uint8)
    np.bitwise_and(packed, 0x0F, out=codes[..., 0::2])
    np.right_shift(packed, 4, out=codes[..., 1::2])
    return codes


def pack_nibbles(codes: U8) -> U8:
    """Join pairs of codes into bytes, the even element in the low nibble.

    Shapes: ``[..., 2n]`` uint8 with values 0..15 -> ``[..., n]`` uint8.
    Raises: ValueError if the last axis is odd or a code exceeds 15.
    """
    if codes.shape[-1] % 2:
        raise ValueError(f"cannot pack an odd number of codes: last axis is {codes.shape[-1]}")
    if codes.size and int(codes.max()) > 0x0F:
        raise ValueError(f"a 4-bit code is at most 15, got {int(codes.max())}")
    return np.asarray(codes[..., 0::2] | (codes[..., 1::2] << 4), dtype=np.uint8)
