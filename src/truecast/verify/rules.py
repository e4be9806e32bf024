"""What a manifest allows and promises about matrices; without a manifest, nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Place = tuple[int, int]
"""Row and column of the first element of a half block."""


@dataclass(frozen=True, slots=True)
class Rules:
    """``canonical``: truecast wrote this output, so the scales of all-zero half blocks are prescribed as well.

    ``allow_inexact``: values may have changed where the manifest says so. ``inexact``: the listed half blocks of each
    matrix with their squared error; ``rounded``: matrices that may be rounded as a whole (BF16, or a global scale
    turned from multiplier to divisor), with the number of elements or half blocks. ``watched``: matrices that share a
    global scale with one that has listed half blocks.
    """

    canonical: bool = False
    allow_inexact: bool = False
    inexact: Mapping[str, Mapping[Place, float]] = field(default_factory=dict)
    rounded: Mapping[str, int] = field(default_factory=dict)
    watched: frozenset[str] = frozenset()

    def of(self, names: set[str]) -> Rules:
        """The part that concerns these matrices."""
        return Rules(
            self.canonical,
            self.allow_inexact,
            {k: v for k, v in self.inexact.items() if k in names},
            {k: v for k, v in self.rounded.items() if k in names},
            self.watched & names,
        )
