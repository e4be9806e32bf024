"""The arithmetic that all INT4 group scales have in common: one binade of scales, as tables of small integers.

MXFP4 knows only magnitudes ``2^i`` and ``1.5 * 2^i``. Seen from a scale ``s`` in the binade ``[2^e, 2^(e+1))``,
a magnitude ``v`` is therefore dead (``v <= 2^e / 2``: its code is 0), saturated (``v >= 16 * 2^e``) or one of nine in
between. A code changes from ``c`` to ``c + 1`` where ``s`` falls through ``v / (c + 1/2)``; this happens at the same
twelve mantissas in every binade, whatever the data. So the search over all BF16 scales is a walk over thirteen
intervals a binade, in each of which every code is fixed and the error is a parabola in ``s``.

Units: a scale is ``m * 2^(e-7)`` with the BF16 mantissa ``m`` in 128..255; a live magnitude is ``V * 2^(e-2)``.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

LIVE: tuple[int, ...] = (3, 4, 6, 8, 12, 16, 24, 32, 48)
"""The magnitudes ``V`` of a binade whose code depends on the scale's mantissa."""

ORDER = {value: 2 * i + half for i in range(-1, 5) for half, value in ((0, 2 ** (i + 2)), (1, 3 * 2 ** (i + 1)))}
"""Place of ``V`` in the order of all magnitudes: ``2^i`` is ``2i``, ``1.5 * 2^i`` is ``2i + 1``."""

MAX_CODE = 8
"""Largest magnitude of a code: -8 on one side, +7 on the other."""


def code_of(value: int, mantissa: int) -> int:
    """Nearest code magnitude of ``V`` under a scale mantissa, ties to even, 0..8."""
    ratio = Fraction(32 * value, mantissa)
    return min(MAX_CODE, round(ratio))  # Fraction rounds half to even


def _thresholds() -> list[tuple[Fraction, list[tuple[int, int]]]]:
    """Mantissas in (128, 256) where codes change, from above, with the ``(live index, code before)`` that do."""
    found: dict[Fraction, list[tuple[int, int]]] = {}
    for index, value in enumerate(LIVE):
        for code in range(MAX_CODE):
            at = Fraction(64 * value, 2 * code + 1)
            if 128 < at < 256:
                found.setdefault(at, []).append((index, code))
    return sorted(found.items(), reverse=True)


_STEPS = _thresholds()

INTERVALS = len(_STEPS) + 1

LOW: NDArray[np.int64] = np.array([*(ceil(at) for at, _ in _STEPS), 128], dtype=np.int64)
HIGH: NDArray[np.int64] = np.array([255, *(floor(at) for at, _ in _STEPS)], dtype=np.int64)
"""Smallest and largest mantissa of each interval, from the top of the binade down. Both ends belong to it: on a
threshold the two codes are equally near."""

CHANGES: NDArray[np.int64] = np.array(
    [[(len(LIVE), 0)] * 2] + [[*change, (len(LIVE), 0)][:2] for _, change in _STEPS], dtype=np.int64
)
"""``[interval, 2, (live index, code before)]``: what changes on entering it; index 9 stands for nothing."""

START: NDArray[np.int64] = np.array([code_of(value, 255) for value in LIVE], dtype=np.int64)
"""Codes of the live magnitudes in the first interval."""

CODES: NDArray[np.uint8] = np.array([[code_of(v, m) for v in LIVE] for m in range(128, 256)], dtype=np.uint8)
"""``[mantissa - 128, live index]``: the code magnitude of each live magnitude, 0..8."""

assert all(len(change) <= 2 for _, change in _STEPS)
