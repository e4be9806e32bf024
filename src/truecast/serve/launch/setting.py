"""One flag or environment variable of a launch, and why it is there."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """``name`` with its dashes, or of the variable; ``value`` None for a flag that takes none.

    ``shell``: the value is a shell expression for between double quotes (``$HEAD``, ``$(...)``), which each node works
    out for itself. ``added``: what the published command for this deployment lacks, where there is one.
    """

    name: str
    value: str | None
    why: str
    shell: bool = False

    def words(self) -> tuple[str, ...]:
        """Quoted for a shell: the flag, and its value if it has one."""
        if self.value is None:
            return (self.name,)
        return self.name, f'"{self.value}"' if self.shell else shlex.quote(self.value)

    def export(self) -> str:
        """The line of a shell script that sets this variable."""
        return f"export {self.name}={self.words()[1]}"
