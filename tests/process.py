"""A program that a test starts."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Any


class Process(subprocess.Popen[Any]):
    """As ``with`` statement it kills the program where the test fails; Popen's own then waits for ever."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, trace)
