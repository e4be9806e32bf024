"""Every check on what is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from truecast.errors import TruecastError
from truecast.serve.doctor.catalogue import CHECKS
from truecast.serve.doctor.finding import Check, Finding, Status, Verdict, unknown
from truecast.serve.doctor.ground import Ground

_BROKEN = (TruecastError, LookupError, SyntaxError, ValueError, OSError, RecursionError, MemoryError)
"""What files that somebody else made may bring a reader to."""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order of the catalogue."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Is there no FAIL?"""
        return all(finding.status is not Status.FAIL for finding in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """How many findings of each status; all five are there."""
        counted = Counter(finding.status for finding in self.findings)
        return {str(status): counted[status] for status in Status}

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ok": self.ok,
            "counts": self.counts,
            "findings": [finding.document() for finding in self.findings],
        }


def doctor(ground: Ground, checks: Iterable[Check] = CHECKS) -> Report:
    """Run every check. Broken files end in UNKNOWN, never in an error."""
    return Report(tuple(finding for check in checks for finding in _findings(check, ground)))


def _findings(check: Check, ground: Ground) -> list[Finding]:
    try:
        told = check.run(ground)
        verdicts = [told] if isinstance(told, Verdict) else list(told)
    except _BROKEN as error:
        text = " ".join(str(error).split())[:400] or type(error).__name__
        verdicts = [unknown(f"cannot be told: {text}", "repair or replace the file that is named")]
    source = "; ".join(check.sources)
    return [Finding(check.id, v.status, check.title, v.evidence, v.remedy, source) for v in verdicts]
