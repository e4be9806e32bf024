"""E2M1, the 4-bit float of MXFP4 and NVFP4: sign, two exponent bits (bias 1), one mantissa bit.

The sixteen codes are +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}; bit 3 is the sign, so code 8 is minus zero. There is no
infinity and no NaN. All magnitudes are whole numbers of halves: 0, 1, 2, 3, 4, 6, 8, 12.

Source: OCP Microscaling Formats (MX) v1.0, section 5.3.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

HALVES: U8 = np.array([0, 1, 2, 3, 4, 6, 8, 12], dtype=np.uint8)
"""Magnitude of the low three bits of a code, in units of 0.5."""

VALUES: NDArray[np.float32] = (np.concatenate([HALVES, -HALVES.astype(np.float32)]) / 2).astype(np.float32)
"""Value of each of the 16 codes; ``VALUES[8]`` is minus zero."""

SIGN_BIT = 0x08
MAX = 6.0

_MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
_EVEN_WINS_UP = np.array([False, True, False, True, False, True, False])  # is the code above the midpoint the even one?


def decode(codes: U8) -> NDArray[np.float32]:
    """Value of each code. Shapes: ``[...]`` uint8 (0..15) -> ``[...]`` float32. Exact, minus zero kept."""
    return VALUES[codes]


def encode_nearest_even(values: NDArray[np.floating]) -> U8:
    """Nearest code; ties go to the even code; beyond 6 saturates; the sign of zero is kept.

    Shapes: ``[...]`` float -> ``[...]`` uint8 (0..15).
    Raises: ValueError on NaN.
    Source: OCP MX v1.0 section 5.3.3 (round to nearest, ties to even, saturating).
    """
    if np.isnan(values).any():
        raise ValueError("NaN has no E2M1 code")
    magnitude = np.abs(values)
    codes = np.zeros(values.shape, dtype=np.uint8)
    for midpoint, tie_goes_up in zip(_MIDPOINTS, _EVEN_WINS_UP, strict=True):
        codes += (magnitude >= midpoint) if tie_goes_up else (magnitude > midpoint)
    return np.asarray(codes | (np.signbit(values).astype(np.uint8) << 3), dtype=np.uint8)
