"""What a manifest allows and promises about matrices; without a manifest, nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

Place = tuple[int, int]
"""Row and column of the first element of a half block."""

METHODS = ("exact", "signed", "amax")
"""Ways to choose an INT4 scale that can be held against the bytes."""

Promised = Mapping[str, float]
"""Figures of a matrix as the manifest states them, by name."""


@dataclass(frozen=True, slots=True)
class Int4Claim:
    """How INT4 scales were chosen, as the manifest says.

    ``method``: one of ``METHODS``, or a name that says nothing here. ``both_signs``: negative scales were candidates.
    ``weights``: sha256 of the file of importance vectors that the error which ``exact`` makes least counts by, or None.
    ``calibration``: sha256 of the calibration that activation scales were taken from, or None; ``diagonal``: its second
    moments are the importance vectors.
    """

    method: str
    both_signs: bool
    weights: str | None
    matrices: Mapping[str, Promised]
    calibration: str | None = None
    diagonal: bool = False


@dataclass(frozen=True, slots=True)
class CodeClaim:
    """What a manifest says of one changed file: the rule, and sha256 of the source's bytes and of those written."""

    rule: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Rules:
    """``canonical``: truecast wrote this output, so the scales of all-zero half blocks are prescribed as well.

    ``allow_inexact``: values may have changed where the manifest says so. ``inexact``: the listed half blocks of each
    matrix with their squared error; ``rounded``: matrices that may be rounded as a whole (BF16, FP8, or a global scale
    turned from multiplier to divisor), with the number of elements or half blocks. ``watched``: matrices that share a
    global scale with one that has listed half blocks. ``int4``: what is said of INT4 matrices; ``fp8``: of BF16 modules
    made FP8, None where there is no manifest.
    """

    canonical: bool = False
    allow_inexact: bool = False
    inexact: Mapping[str, Mapping[Place, float]] = field(default_factory=dict)
    rounded: Mapping[str, int] = field(default_factory=dict)
    watched: frozenset[str] = frozenset()
    int4: Int4Claim | None = None
    fp8: Mapping[str, Promised] | None = None

    def of(self, names: set[str]) -> Rules:
        """The part that concerns these matrices."""
        claim = self.int4
        if claim is not None:
            mine = {k: v for k, v in claim.matrices.items() if k in names}
            claim = replace(claim, matrices=mine)
        return Rules(
            self.canonical,
            self.allow_inexact,
            {k: v for k, v in self.inexact.items() if k in names},
            {k: v for k, v in self.rounded.items() if k in names},
            self.watched & names,
            claim,
            None if self.fp8 is None else {k: v for k, v in self.fp8.items() if k in names},
        )
