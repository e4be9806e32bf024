"""Random access to the bytes of a file, local or behind an fsspec URL."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from truecast.errors import InputError

LOCAL_CHUNK_BYTES = 256 << 10
"""Pieces that fit a core's cache: a byte is hashed and written while it is still there (1.6 times faster than 5 MB)."""

FORGET_BYTES = 32 << 20
"""How much of a streamed file may pile up in the page cache."""

REMOTE_CHUNK_BYTES = 8 << 20
"""Pieces worth a request of their own."""


class ByteFile(Protocol):
    """A file of known size that gives byte ranges."""

    size: int
    chunk_bytes: int
    """How much to ask for at a time when streaming."""

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``. Raises: InputError if the file ends earlier."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start`` on. Raises: InputError if the file ends earlier."""

    def forget(self, start: int, end: int) -> None:
        """These bytes will not be read again soon: they need not stay in the page cache."""

    def close(self) -> None:
        """Release the file."""


File = TypeVar("File", bound=ByteFile)


class LocalFile:
    """A file on disk, read with ``pread``: no shared position, no mapping, so memory stays what the caller asks for."""

    chunk_bytes = LOCAL_CHUNK_BYTES

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe must not wait for its writer
        except OSError as error:
            raise InputError(f"cannot open: {error.strerror}", where=str(path)) from None
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            raise InputError("is no regular file", where=str(path), fix="download it again")
        self.size = status.st_size

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``; one copy out of the page cache."""
        whole = os.pread(self.fd, end - start, start)
        if len(whole) == end - start:
            return whole
        data = bytearray(end - start)  # one call stops at 2 GiB
        self.read_into(start, memoryview(data))
        return bytes(data)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See :class:`ByteFile`."""
        have = 0
        while have < len(buffer):  # one call stops at 2 GiB
            try:
                got = os.preadv(self.fd, [buffer[have:]], start + have)
            except OSError as error:
                raise InputError(f"cannot read: {error.strerror}", where=str(self.path)) from None
            if got == 0:
                raise InputError(
                    f"ends at byte {start + have}, {start + len(buffer)} wanted",
                    where=str(self.path),
                    fix="is it still being written?",
                )
            have += got

    def forget(self, start: int, end: int) -> None:
        """See :class:`ByteFile`."""
        drop_pages(self.fd, start, end - start)

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

    chunk_bytes = REMOTE_CHUNK_BYTES

    def __init__(self, filesystem: Any, path: str) -> None:
        self.filesystem, self.path = filesystem, path
        with explained(path, "open"):
            self.size = int(filesystem.size(path))

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end`` by one range request."""
        if start == end:
            return b""
        with explained(self.path, f"read bytes {start} to {end}"):
            data = bytes(self.filesystem.cat_file(self.path, start=start, end=end))
        if len(data) != end - start:
            raise InputError(f"range {start}..{end} gave {len(data)} bytes", where=self.path)
        return data

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See :class:`ByteFile`."""
        buffer[:] = self.read(start, start + len(buffer))

    def forget(self, start: int, end: int) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        """Nothing to release: each read is a request of its own."""


def read_whole(file: ByteFile, where: str, limit: int) -> bytes:
    """All bytes of a small file, which is closed. Raises: InputError where it is larger than ``limit``."""
    try:
        if file.size > limit:
            raise InputError(f"{file.size} bytes are more than the {limit} that such a file may have", where=where)
        return bytes(file.read(0, file.size))
    finally:
        file.close()


def stream(file: ByteFile, start: int, end: int) -> Iterator[memoryview]:
    """Bytes ``start`` to ``end`` piece by piece. A piece is overwritten by the next: use it, do not keep it."""
    buffer = memoryview(bytearray(min(file.chunk_bytes, end - start)))
    position = start
    while position < end:
        piece = buffer[: min(len(buffer), end - position)]
        file.read_into(position, piece)
        yield piece
        position += len(piece)
        if position - start >= FORGET_BYTES or position == end:
            file.forget(start, position)
            start = position


def drop_pages(fd: int, start: int, size: int) -> None:
    """Let go of a range's pages in the page cache; dirty ones begin to be written back. ``size`` 0: to the end.

    A checkpoint is larger than memory. Pages that pile up behind a stream cost more system time to reclaim than all
    the copying (measured: 2.8 times), and push everybody else's files out of the cache.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, start, size, os.POSIX_FADV_DONTNEED)


class Opener(Protocol):
    """Opens a checkpoint's files by name, here or in a worker process: it can be pickled."""

    def __call__(self, name: str) -> ByteFile:
        """The file ``name``. Raises: InputError if it cannot be opened."""


@dataclass(frozen=True, slots=True)
class LocalOpener:
    """Opens files of a local folder."""

    folder: Path

    def __call__(self, name: str) -> ByteFile:
        """See :class:`Opener`."""
        return LocalFile(self.folder / name)


@dataclass(frozen=True, slots=True)
class RemoteOpener:
    """Opens files below an fsspec URL."""

    url: str

    def __call__(self, name: str) -> ByteFile:
        """See :class:`Opener`."""
        filesystem, root = connect(self.url)
        return RemoteFile(filesystem, f"{root.rstrip('/')}/{name}")


@contextmanager
def opened(opener: Callable[[str], File]) -> Iterator[Callable[[str], File]]:
    """A function that gives the open file of a name, opened once; all are closed at the end."""
    with ExitStack() as stack:
        files: dict[str, File] = {}

        def get(name: str) -> File:
            if name not in files:
                files[name] = opener(name)
                stack.callback(files[name].close)
            return files[name]

        yield get


@contextmanager
def explained(where: str, what: str) -> Iterator[None]:
    """Context that turns whatever a remote file system raises into an InputError.

    File systems are plug-ins, each over a client library with exceptions of its own, so none can be named here.
    """
    try:
        yield
    except Exception as error:
        raise InputError(f"cannot {what}: {error or type(error).__name__}", where=where) from error


def connect(url: str) -> tuple[Any, str]:
    """File system and path of an fsspec URL. Raises: InputError for an unknown protocol or a missing package."""
    import fsspec

    with explained(url, "open this URL"):
        filesystem, root = fsspec.core.url_to_fs(url)
    return filesystem, root
