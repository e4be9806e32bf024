"""Two's-complement INT4 (-8..7) and the offset-binary form some packers store instead (code = value + 8).

The two differ only in bit 3, yet nothing in the bytes says which one is meant: nibble 0x8 is -8 in one and 0 in the
other. The layout says it; these functions never guess.

Packed, two codes lie in a byte, the even element in the low nibble. A little-endian 32-bit word with element ``j`` in
bits ``4 j`` to ``4 j + 3`` is four such bytes in the same order, so bytes and words need no conversion but of the form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from truecast.formats import packing

U8 = NDArray[np.uint8]
OFFSET = 8


def decode_twos_complement(codes: U8) -> NDArray[np.int8]:
    """Value of each 4-bit two's-complement code. Shapes: ``[...]`` uint8 (0..15) -> ``[...]`` int8, -8..7."""
    return ((codes.astype(np.int8) ^ 8) - 8).astype(np.int8)


def encode_twos_complement(values: NDArray[np.integer]) -> U8:
    """4-bit two's-complement code of each value. Shapes: ``[...]`` int -> ``[...]`` uint8 (0..15).

    Raises: ValueError outside -8..7.
    """
    _check_range(values)
    return (values.astype(np.int16) & 0x0F).astype(np.uint8)


def decode_offset(codes: U8) -> NDArray[np.int8]:
    """Value of each offset-binary code (value = code - 8). Shapes: ``[...]`` uint8 (0..15) -> ``[...]`` int8."""
    return (codes.astype(np.int8) - OFFSET).astype(np.int8)


def encode_offset(values: NDArray[np.integer]) -> U8:
    """Offset-binary code of each value (code = value + 8). Shapes: ``[...]`` int -> ``[...]`` uint8 (0..15).

    Raises: ValueError outside -8..7.
    """
    _check_range(values)
    return (values.astype(np.int16) + OFFSET).astype(np.uint8)


def pack(values: NDArray[np.integer]) -> U8:
    """Pack in two's complement. Shapes: ``[..., 2n]`` int -> ``[..., n]`` uint8.

    Raises: ValueError outside -8..7, or if the last axis is odd.
    """
    return packing.pack_nibbles(encode_twos_complement(values))


def unpack(packed: U8) -> NDArray[np.int8]:
    """Values of packed two's-complement codes. Shapes: ``[..., n]`` uint8 -> ``[..., 2n]`` int8, -8..7."""
    return decode_twos_complement(packing.unpack_nibbles(packed))


def swap_forms(packed: U8) -> U8:
    """The same values in the other form: bit 3 of each code flips, either way. Shapes: ``[..., n]`` -> ``[..., n]``."""
    return np.bitwise_xor(packed, np.uint8(0x88))


def _check_range(values: NDArray[np.integer]) -> None:
    if values.size and (int(values.min()) < -8 or int(values.max()) > 7):
        raise ValueError(f"INT4 holds -8..7, got {int(values.min())}..{int(values.max())}")
