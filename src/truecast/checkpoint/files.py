"""Random access to the bytes of a file, local or behind an fsspec URL."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from truecast.errors import InputError


class ByteFile(Protocol):
    """A file of known size that gives byte ranges."""

    size: int

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``. Raises: InputError if the file ends earlier."""

    def close(self) -> None:
        """Release the file."""


class LocalFile:
    """A file on disk, read with ``pread``: no shared position, no mapping, so memory stays what the caller asks for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot open: {error.strerror}", where=str(path)) from None
        self.size = os.fstat(self.fd).st_size

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``; one copy out of the page cache."""
        data = os.pread(self.fd, end - start, start)
        if len(data) == end - start:
            return data
        pieces, have = [data], len(data)  # a single pread stops at 2 GiB
        while have < end - start and data:
            data = os.pread(self.fd, end - start - have, start + have)
            pieces.append(data)
            have += len(data)
        if have < end - start:
            raise InputError(
                f"ends at byte {start + have}, {end} wanted", where=str(self.path), fix="is it still being written?"
            )
        return b"".join(pieces)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RemoteFile:
    """A file behind an fsspec URL, read by ranges."""

    def __init__(self, filesystem: Any, path: str, size: int) -> None:
        self.filesystem, self.path, self.size = filesystem, path, size

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end`` by one range request."""
        if start == end:
            return b""
        data = bytes(self.filesystem.cat_file(self.path, start=start, end=end))
        if len(data) != end - start:
            raise InputError(f"range {start}..{end} gave {len(data)} bytes", where=self.path)
        return data

    def close(self) -> None:
        """Nothing to release: each read is a request of its own."""
