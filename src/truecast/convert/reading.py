"""The source's files, opened once each inside a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from truecast.checkpoint.files import ByteFile, Opener


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """How to reach the source's files; travels to a worker, opens them there."""

    opener: Opener

    @contextmanager
    def open(self) -> Iterator[Callable[[str], ByteFile]]:
        """A function that gives the open file of a name; all are closed at the end."""
        with ExitStack() as stack:
            files: dict[str, ByteFile] = {}

            def get(name: str) -> ByteFile:
                if name not in files:
                    files[name] = self.opener(name)
                    stack.callback(files[name].close)
                return files[name]

            yield get
