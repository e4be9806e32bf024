"""Half blocks that had to be requantized: how far they are off, and whether each code is the nearest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e2m1
from truecast.verify.canonical import ValueTable

U8 = NDArray[np.uint8]
Index = tuple[U8, U8]
"""Scale bytes ``[n, 1]`` and codes ``[n, 16]``: indices into a value table."""


def squared_errors(source: ValueTable, i: Index, out: ValueTable, j: Index) -> NDArray[np.float64]:
    """Sum of squared differences of each half block, in weight units. Shape: ``[n]``.

    Computed relative to the largest exponent, so that the squares neither overflow nor vanish on the way; the result
    may be infinite or zero where float64 ends.
    """
    before, after = source.to_float64()[i], out.to_float64()[j]
    largest = np.maximum(np.abs(before), np.abs(after)).max(axis=1)
    unit = np.frexp(largest)[1]
    difference = np.ldexp(after, -unit[:, None]) - np.ldexp(before, -unit[:, None])
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(np.square(difference).sum(axis=1), 2 * unit))


def wrongly_rounded(source: ValueTable, i: Index, out: ValueTable, j: Index) -> NDArray[np.int64]:
    """First element of each half block whose code is not the nearest to the source's value under the block's scale.

    Ties go to the even code, beyond 6 saturates, the sign is kept. Shape: ``[n]``, -1 where every code is the nearest.
    """
    grid = np.abs(out.to_float64()[j[0], np.arange(8)[None, :]])[:, None, :]
    before = np.minimum(np.abs(source.to_float64()[i])[:, :, None], grid[:, :, -1:])
    distance = np.abs(before - grid)
    nearest = distance == distance.min(axis=2, keepdims=True)
    even = nearest & (np.arange(8) % 2 == 0)
    best = np.where(even.any(axis=2), even.argmax(axis=2), nearest.argmax(axis=2))
    signs = (i[1] ^ j[1]) & e2m1.SIGN_BIT
    wrong = (best != (j[1] & 7)) | (signs != 0)
    return np.where(wrong.any(axis=1), wrong.argmax(axis=1), -1)
