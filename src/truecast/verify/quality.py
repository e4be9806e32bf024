"""How far a cast with loss is from its source: figures by class, by layer, of the worst matrices, and a histogram.

Signal-to-noise ratio (SQNR) is ``10 log10(sum v^2 / sum (v - v')^2)`` in dB over the values ``v`` of the source and
``v'`` of the output; relative error is the square root of the inverse ratio. Figures of many matrices are those of their
sums. Bounded memory: matrices are added up as they come, only the worst are kept by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from truecast.layouts.base import class_of

WORST = 20
"""So many matrices are named."""

BINS = 64
"""Bins of the histogram: whole dB, the last holds all beyond."""


@dataclass(slots=True)
class Figures:
    """Sums over one matrix or many. Groups are those of INT4 (128 elements under one scale); FP8 counts none."""

    matrices: int = 0
    elements: int = 0
    squared_error: float = 0.0
    squared_sum: float = 0.0
    nearest: int = 0
    """Elements whose code is a nearest one for its stored scale, in exact arithmetic."""
    groups: int = 0
    exact_groups: int = 0
    zero_groups: int = 0
    unbeaten: int = 0
    """Groups whose scale has no BF16 neighbour with a smaller error, in exact arithmetic."""
    negative_scales: int = 0
    other_scales: int = 0
    """Groups whose scale is legal, but no normal BF16."""

    def add(self, other: Figures) -> None:
        """Add another's sums."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def sqnr(self) -> float | None:
        """Signal-to-noise ratio in dB; None where there is no error, or nothing but zeros."""
        if not (self.squared_error > 0 and self.squared_sum > 0):
            return None
        return 10 * (math.log10(self.squared_sum) - math.log10(self.squared_error))

    @property
    def relative_error(self) -> float:
        """Root of the ratio of the squared error to the squared sum; 0 where there is no error."""
        return math.sqrt(self.squared_error / self.squared_sum) if self.squared_sum > 0 else 0.0

    def document(self, unbeaten: bool = True) -> dict[str, Any]:
        """JSON-ready form, with the ratios. Without ``unbeaten`` that count and its share are null."""
        document: dict[str, Any] = {name: getattr(self, name) for name in _SUMMED}
        document["sqnr_db"] = self.sqnr
        document["relative_error"] = self.relative_error
        document["nearest_share"] = self.nearest / self.elements if self.elements else None
        document["unbeaten_share"] = self.unbeaten / self.groups if self.groups and unbeaten else None
        if not unbeaten:
            document["unbeaten"] = None
        return document


_SUMMED = tuple(f.name for f in fields(Figures))


@dataclass(slots=True)
class Quality:
    """Figures of all matrices that were cast with loss."""

    int4: Figures = field(default_factory=Figures)
    fp8: Figures = field(default_factory=Figures)
    classes: dict[str, Figures] = field(default_factory=dict)
    layers: dict[str, Figures] = field(default_factory=dict)
    worst: list[tuple[float, str, float]] = field(default_factory=list)
    """The matrices of lowest SQNR: ``(dB, name, relative error)``, the worst first."""
    histogram: list[int] = field(default_factory=lambda: [0] * BINS)
    """INT4 groups with an error, by their own SQNR in whole dB (0 or less in the first)."""

    @property
    def matrices(self) -> int:
        """How many there are."""
        return self.int4.matrices + self.fp8.matrices

    def note(self, name: str, figures: Figures, histogram: Iterable[int] = ()) -> None:
        """Add one matrix. ``histogram``: of its groups, for INT4."""
        (self.int4 if figures.groups else self.fp8).add(figures)
        self.classes.setdefault(class_of(name), Figures()).add(figures)
        self.layers.setdefault(layer_of(name), Figures()).add(figures)
        for place, number in enumerate(histogram):
            self.histogram[place] += int(number)
        if figures.sqnr is not None:
            self._keep_worst([(figures.sqnr, name, figures.relative_error)])

    def add(self, other: Quality) -> None:
        """Add another part's figures."""
        self.int4.add(other.int4)
        self.fp8.add(other.fp8)
        for mine, theirs in ((self.classes, other.classes), (self.layers, other.layers)):
            for name, figures in theirs.items():
                mine.setdefault(name, Figures()).add(figures)
        self.histogram = [a + b for a, b in zip(self.histogram, other.histogram, strict=True)]
        self._keep_worst(other.worst)

    def _keep_worst(self, more: Iterable[tuple[float, str, float]]) -> None:
        self.worst = sorted([*self.worst, *more])[:WORST]

    def document(self, unbeaten: bool = True) -> dict[str, Any]:
        """JSON-ready form; see :meth:`Figures.document`."""
        layers = sorted(self.layers, key=_in_order)
        return {
            "int4": self.int4.document(unbeaten),
            "fp8": self.fp8.document(unbeaten),
            "classes": {name: self.classes[name].document(unbeaten) for name in sorted(self.classes)},
            "layers": {name: self.layers[name].document(unbeaten) for name in layers},
            "worst": [{"matrix": name, "sqnr_db": db, "relative_error": error} for db, name, error in self.worst],
            "histogram": {str(db): number for db, number in enumerate(self.histogram) if number},
        }


def layer_of(name: str) -> str:
    """A module's layer: its name up to the first number; its first part where there is none."""
    parts = name.split(".")
    end = next((i for i, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: end + 1])


def _in_order(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition(".")
    return (stem, int(number)) if number.isdecimal() and len(number) < 10 else (name, -1)
