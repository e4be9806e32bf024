"""Numbers with what they count."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """``1 matrix``, ``2 matrices``, ``1,000 faults``."""
    plural = what[:-1] + "ces" if what.endswith("ix") else what + "s"
    return f"{number:,} {what if number == 1 else plural}"
