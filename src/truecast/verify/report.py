"""What a verification found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from truecast.verify.quality import Quality

KEPT_FAILURES = 1000
"""So many failures are kept in full; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that does not hold. ``row`` and ``column`` name the first element concerned, in its matrix or tensor.

    ``kind``: ``value``, ``scale``, ``global_scale``, ``input_scale``, ``bias``, ``bytes`` (a copied tensor), ``shape``,
    ``missing``, ``extra``, ``inexact``, ``figures`` (of a cast with loss), ``twins``, ``header``, ``index``,
    ``manifest``, ``file``, ``code``, ``hash``, ``certificate``.
    """

    kind: str
    file: str
    tensor: str
    row: int | None
    column: int | None
    message: str


@dataclass(slots=True)
class Failures:
    """Failures as they come, bounded."""

    kept: list[Failure] = field(default_factory=list)
    total: int = 0

    def add(
        self,
        kind: str,
        message: str,
        *,
        file: str = "",
        tensor: str = "",
        row: int | None = None,
        column: int | None = None,
    ) -> None:
        """Note one failure."""
        self.extend([Failure(kind, file, tensor, row, column, message)])

    def extend(self, failures: Iterable[Failure], total: int | None = None) -> None:
        """Note several; ``total`` if they stand for more than themselves."""
        found = list(failures)
        self.total += len(found) if total is None else total
        self.kept += found[: max(0, KEPT_FAILURES - len(self.kept))]


@dataclass(frozen=True, slots=True)
class Inexact:
    """A half block of 16 elements (first element ``row``, ``column``) whose values changed, as the manifest says."""

    matrix: str
    row: int
    column: int
    squared_error: float


@dataclass(slots=True)
class Counts:
    """How much was compared. A half block is 16 elements that share an NVFP4 scale; MXFP4 and NVFP4 have them."""

    source_tensors: int = 0
    out_tensors: int = 0
    copied_tensors: int = 0
    matrices: int = 0
    half_blocks: int = 0
    elements: int = 0
    renormalised_half_blocks: int = 0
    inexact_half_blocks: int = 0
    inexact_elements: int = 0
    """Elements of BF16 outputs that are rounded."""
    bytes_read: int = 0

    def add(self, other: Counts) -> None:
        """Add another part's counts."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Report:
    """The outcome. ``ok`` is the claim: every tensor accounted for, every value equal, every byte as recorded.

    Where ``quality`` has matrices, their values are not equal: then ``ok`` says that nothing contradicts what the
    manifest says of them, or without one that their scales are legal.
    """

    counts: Counts = field(default_factory=Counts)
    failures: Failures = field(default_factory=Failures)
    inexact: list[Inexact] = field(default_factory=list)
    quality: Quality = field(default_factory=Quality)
    scales_unchecked: str = ""
    """Why nobody can say here whether INT4 scales are the best; then ``unbeaten`` means nothing, and is not given."""
    manifest_checked: bool = False
    declared: bool = False
    """Is there a manifest, and does it speak of this source?"""
    notes: list[str] = field(default_factory=list)
    source: str = ""
    out: str = ""
    """Fingerprints of the two sides: names, sizes and headers of all shards, and config.json."""
    manifest: str | None = None
    """sha256 of the bytes of truecast.json; None where there is none that can be read."""

    @property
    def ok(self) -> bool:
        """Does the claim hold?"""
        return self.failures.total == 0

    def document(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "ok": self.ok,
            "counts": asdict(self.counts),
            "failures_total": self.failures.total,
            "failures": [asdict(f) for f in self.failures.kept],
            "inexact": [asdict(b) for b in self.inexact],
            "quality": self.quality.document(unbeaten=not self.scales_unchecked) if self.quality.matrices else None,
            "manifest_checked": self.manifest_checked,
            "declared": self.declared,
            "notes": self.notes,
            "source": self.source,
            "out": self.out,
            "manifest": self.manifest,
        }
