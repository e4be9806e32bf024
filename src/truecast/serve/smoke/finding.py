"""What a check found: its name, how it went, what was seen, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PASS, WARN, FAIL, SKIP = "PASS", "WARN", "FAIL", "SKIP"
SHOWN = 160
"""Characters of a text that a finding quotes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. ``status`` is PASS, WARN, FAIL or SKIP; ``remedy`` is empty where there is nothing to do."""

    id: str
    status: str
    evidence: str
    remedy: str = ""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"id": self.id, "status": self.status, "evidence": self.evidence, "remedy": self.remedy}


def passed(name: str, evidence: str) -> Finding:
    """As it should be."""
    return Finding(name, PASS, evidence)


def warned(name: str, evidence: str, remedy: str) -> Finding:
    """Not wrong, but the user should know."""
    return Finding(name, WARN, evidence, remedy)


def failed(name: str, evidence: str, remedy: str) -> Finding:
    """The server is wrong."""
    return Finding(name, FAIL, evidence, remedy)


def skipped(name: str, why: str, remedy: str = "") -> Finding:
    """Not tried, and why."""
    return Finding(name, SKIP, why, remedy)


def quoted(text: str) -> str:
    """A text in quotes, cut to what fits a line."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
