"""What came of comparing one matrix."""

from __future__ import annotations

from dataclasses import dataclass, field

from truecast.verify.quality import Figures
from truecast.verify.report import Counts, Failure, Inexact
from truecast.verify.stored import Stored


@dataclass(slots=True)
class MatrixResult:
    """Counts and findings for one matrix of the output. ``failures`` holds the first of each kind.

    ``figures`` and ``histogram`` (of its groups) are those of a matrix that was cast with loss. Places are row and column
    in the matrix ``[out, in]``, also where the layout stacks, interleaves or transposes.
    """

    out: Stored
    counts: Counts = field(init=False)
    failures: list[Failure] = field(default_factory=list)
    inexact: list[Inexact] = field(default_factory=list)
    figures: Figures | None = None
    histogram: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        elements = self.out.rows * self.out.cols
        blocks = elements // 16 if self.out.format in ("mxfp4", "nvfp4") else 0
        self.counts = Counts(matrices=1, half_blocks=blocks, elements=elements)

    def fail(self, kind: str, role: str, message: str, row: int | None = None, column: int | None = None) -> None:
        """Note a failure in the stored part ``role``."""
        view = self.out.parts[role]
        if view.entry is not None or view.tensor.name == self.out.name:
            message = f"{self.out.name}: {message}"  # the tensor holds many matrices
        self.failures.append(Failure(kind, view.tensor.file, view.tensor.name, row, column, message))


@dataclass(slots=True)
class First:
    """The first finding of a kind in a matrix, and how many there are."""

    count: int = 0
    row: int = 0
    column: int = 0
    why: str = ""

    def note(self, row: int, column: int, why: str) -> None:
        """Keep the first, count all."""
        if self.count == 0:
            self.row, self.column, self.why = row, column, why
        self.count += 1

    def tell(self, result: MatrixResult, kind: str, role: str, what: str) -> None:
        """Make it a failure, if there is one. ``what``: what the count counts."""
        if self.count:
            why = self.why if self.count == 1 else f"{self.why} ({self.count} {what}, this is the first)"
            result.fail(kind, role, why, self.row, self.column)
