"""What a cast makes of one matrix, and what is counted on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import ByteFile
from truecast.convert.importance import Importance
from truecast.layouts.calibration import Calibration

U8 = NDArray[np.uint8]
Read = Callable[[str], ByteFile]
"""Opens a source file by name."""


@dataclass(frozen=True, slots=True)
class Cast:
    """What a worker has to know of the target. ``method`` to ``rounding`` concern INT4 only."""

    format: str
    dialect: str
    stacked: bool = False
    method: str = "exact"
    importance: Importance | None = None
    calibration: Calibration | None = None
    rounding: str = "data-free"
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Parts:
    """New block scales, a row of bytes for each row of the matrix, and new codes likewise.

    ``codes`` is None where the source's codes stay as they are; then they need not be read whole.
    """

    scale: U8
    codes: Callable[[], U8] | None = None


@dataclass(slots=True)
class Tally:
    """What the casts of one shard did; counted once a matrix, however often its bytes are asked for."""

    half_blocks: int = 0
    renormalised: int = 0
    subnormal_scales: int = 0
    subnormal_live: dict[str, int] = field(default_factory=dict)
    """Matrix -> its half blocks that are not zero under a subnormal scale, where there are any."""
    inexact: list[dict[str, object]] = field(default_factory=list)
    int4: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Matrix -> figures of its INT4 groups."""
    fp8: dict[str, dict[str, float]] = field(default_factory=dict)
    """Module -> figures of a BF16 weight that became FP8."""
    counted: set[str] = field(default_factory=set)

    def first(self, name: str) -> bool:
        """Is this matrix to be counted? True the first time only."""
        if name in self.counted:
            return False
        self.counted.add(name)
        return True
