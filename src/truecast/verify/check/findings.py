"""What ``check`` says: findings, and the collector that keeps a broken checkpoint from drowning its reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from truecast.verify.check.rules import ERROR, RULES


@dataclass(frozen=True, slots=True)
class Place:
    """Where a finding lies. Row and block count from 0, within the matrix ``module``; absent parts are None."""

    file: str | None = None
    tensor: str | None = None
    module: str | None = None
    row: int | None = None
    block: int | None = None

    def __str__(self) -> str:
        parts = [self.tensor or self.module or ""]
        if self.module and self.tensor and not self.tensor.startswith(self.module):
            parts.append(f"({self.module})")  # a stacked tensor: say which expert's matrix
        if self.row is not None:
            parts.append(f"row {self.row}")
        if self.block is not None:
            parts.append(f"block {self.block}")
        if self.file:
            parts.append(f"in {self.file}" if any(parts) else self.file)
        return " ".join(p for p in parts if p) or "the checkpoint"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (``error``) or deserves a look (``warning``), with its reason and its remedy."""

    id: str
    severity: str
    place: Place
    message: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity} {self.id}: {self.place}: {self.message}"

    def document(self) -> dict[str, Any]:
        """The finding as JSON values."""
        names = ("file", "tensor", "module", "row", "block")
        place = {n: getattr(self.place, n) for n in names if getattr(self.place, n) is not None}
        return {
            "id": self.id,
            "severity": self.severity,
            "place": place,
            "message": self.message,
            "why": self.why,
            "remedy": self.remedy,
        }


@dataclass(slots=True)
class _Kind:
    shown: list[Finding] = field(default_factory=list)
    total: int = 0


@dataclass(slots=True)
class Collector:
    """Findings by rule, severity and class of tensor: the first few in full, all of them counted. Can be pickled."""

    kinds: dict[tuple[str, str, str], _Kind] = field(default_factory=dict)

    def add(
        self,
        rule_id: str,
        place: Place,
        message: str,
        *,
        severity: str | None = None,
        remedy: str | None = None,
        why: str | None = None,
    ) -> None:
        """Record a finding of a rule. What is not given comes from the rule's own entry."""
        rule = RULES[rule_id]
        severity = severity or rule.severity
        kind = self.kinds.setdefault((rule_id, severity, tensor_class(place)), _Kind())
        kind.total += 1
        if len(kind.shown) < rule.shown:
            kind.shown.append(Finding(rule_id, severity, place, message, why or rule.why, remedy or rule.remedy))

    def merge(self, other: Collector) -> None:
        """Add what another collector holds."""
        for key, theirs in other.kinds.items():
            ours = self.kinds.setdefault(key, _Kind())
            ours.total += theirs.total
            ours.shown += theirs.shown[: max(0, RULES[key[0]].shown - len(ours.shown))]

    def make_error(self, rule_id: str) -> None:
        """A rule that is a warning in general and an error here."""
        kinds = {}
        for (found, severity, name), kind in self.kinds.items():
            if found == rule_id:
                severity = ERROR
                kind = _Kind([replace(finding, severity=ERROR) for finding in kind.shown], kind.total)
            kinds[found, severity, name] = kind
        self.kinds = kinds

    def drop(self, rule_id: str) -> None:
        """Forget the findings of a rule that could not be judged after all."""
        self.kinds = {key: kind for key, kind in self.kinds.items() if key[0] != rule_id}

    def restore(self, key: tuple[str, str, str], shown: list[Finding], total: int) -> None:
        """Put back what ``kinds`` of another collector held under a key."""
        self.kinds[key] = _Kind(shown, total)

    def findings(self) -> list[Finding]:
        """Errors before warnings; where a class has more than is shown, one last finding that says how many."""
        found = list(self._listed())
        return [f for f in found if f.severity == "error"] + [f for f in found if f.severity != "error"]

    def _listed(self) -> Iterator[Finding]:
        for (rule_id, severity, name), kind in self.kinds.items():
            yield from kind.shown
            if kind.total > len(kind.shown):
                rule, more = RULES[rule_id], kind.total - len(kind.shown)
                of_files = kind.shown[0].place.tensor is None and kind.shown[0].place.module is None
                place = Place(file=name) if of_files else Place(tensor=name)
                yield Finding(rule_id, severity, place, f"and {more} more", rule.why, rule.remedy)

    def totals(self, severity: str | None = None) -> dict[str, int]:
        """Rule -> how often it was broken, listed or not."""
        totals: dict[str, int] = {}
        for (rule_id, kind_severity, _), kind in self.kinds.items():
            if severity in (None, kind_severity):
                totals[rule_id] = totals.get(rule_id, 0) + kind.total
        return dict(sorted(totals.items()))


def tensor_class(place: Place) -> str:
    """The place's tensor or module with every numbered part replaced by ``*``; its file with every number."""
    name = place.tensor or place.module
    if name is None:
        return re.sub(r"\d+", "*", place.file or "")
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))
