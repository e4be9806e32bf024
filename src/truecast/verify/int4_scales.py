"""INT4 group scales that a simple rule prescribes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e2m1, e8m0, packing
from truecast.verify.rounding import bf16_bits

U8 = NDArray[np.uint8]
_GROUP = 128
_LEAST = 2.0**-126


def prescribed_bits(method: str, codes: U8, scales: U8) -> NDArray[np.uint32]:
    """Scales of some rows under ``signed`` or ``amax``, as bits of float32. A group of zeros has scale 1.

    ``amax``: the largest magnitude over 7. ``signed``: the value of largest magnitude over -8, a positive one where both
    signs have it, since -8 is a code and 8 is none. Rounded to BF16, no smaller than its smallest normal.
    Shapes: MXFP4 codes ``[n, cols/2]``, scales ``[n, cols/32]`` -> ``[n, cols/128]``.
    """
    values = e2m1.VALUES[packing.unpack_nibbles(codes)].astype(np.float64).reshape(*scales.shape, 32)
    values = np.ldexp(values, e8m0.exponents(scales)[..., None].astype(np.int32)).reshape(len(codes), -1, _GROUP)
    highest, lowest = values.max(axis=2), values.min(axis=2)
    largest = np.maximum(highest, -lowest)
    if method == "amax":
        scale = np.maximum(largest / 7, _LEAST)  # h/7 repeats in binary: rounding twice is rounding once
    else:
        scale = np.where(highest == largest, -1, 1) * np.maximum(largest / 8, _LEAST)
    bits, _ = bf16_bits(np.where(largest == 0, 1.0, scale))
    return np.asarray(bits.astype(np.uint32) << 16, dtype=np.uint32)
