"""What a check says. A check returns verdicts; with the check's own id, title and source they become findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from truecast.serve.doctor.ground import Ground


class Status(StrEnum):
    """``FAIL``: the server would not start, or would answer wrongly. ``WARN``: it serves, slower or with a risk.

    ``UNKNOWN``: what would have to be read cannot be, or is not known; nothing is guessed. ``SKIP``: nothing to check.
    """

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``evidence`` names a file and line or a value; ``remedy`` is there for all but PASS and SKIP."""

    status: Status
    evidence: str
    remedy: str = ""


def passed(evidence: str) -> Verdict:
    """It is as it has to be."""
    return Verdict(Status.PASS, evidence)


def warned(evidence: str, remedy: str) -> Verdict:
    """It serves, but slower than it could or with a risk."""
    return Verdict(Status.WARN, evidence, remedy)


def failed(evidence: str, remedy: str) -> Verdict:
    """It would not start, or would answer wrongly."""
    return Verdict(Status.FAIL, evidence, remedy)


def unknown(evidence: str, remedy: str) -> Verdict:
    """It cannot be told."""
    return Verdict(Status.UNKNOWN, evidence, remedy)


def skipped(why: str) -> Verdict:
    """There is nothing to check here: ``why`` says what is not given, or does not apply."""
    return Verdict(Status.SKIP, why)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``source``: where the trap is known from."""

    id: str
    status: Status
    title: str
    evidence: str
    remedy: str
    source: str

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.id,
            "status": str(self.status),
            "title": self.title,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class Check:
    """One trap. ``id`` is stable and dotted; ``title`` says what is true when it passes; ``run`` is pure.

    ``run`` may raise LookupError, SyntaxError or an error of truecast where a file is broken: that is UNKNOWN.
    """

    id: str
    title: str
    run: Callable[[Ground], Verdict | Iterable[Verdict]]
    sources: tuple[str, ...]
