"""Writing one file so that it exists under its final name only when it is complete, synced and hashed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from truecast.checkpoint.files import FORGET_BYTES, drop_pages
from truecast.errors import InputError, RefusedError

PARTIAL_SUFFIX = ".partial"
_COPY_BYTES = 1 << 20


class FileWriter:
    """Streams a file's bytes in order to ``<path>.partial``, hashing them; ``commit`` syncs and renames.

    The partial file is locked while it is written, so a second process that is still alive cannot interleave.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(path.name + PARTIAL_SUFFIX)
        self.position = self._dropped = 0
        self._digest = hashlib.sha256()
        while not self._open_locked():
            pass
        with explained(path):
            os.ftruncate(self._fd, 0)

    def _open_locked(self) -> bool:
        """Open and lock the partial file. False if it was renamed in between: then it is somebody's finished file."""
        with explained(self.path):
            self._fd = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise RefusedError(
                "another process is writing it", where=str(self.path), fix="wait for that run to end"
            ) from None
        except OSError:
            pass  # a file system without locks: the journal has warned
        try:
            if self.partial.stat().st_ino == os.fstat(self._fd).st_ino:
                return True
        except FileNotFoundError:
            pass
        self._close()
        return False

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Raises: RefusedError when the disk is full (the partial file is removed)."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        with explained(self.path):
            while view.nbytes:
                written = os.write(self._fd, view)
                self._advance(written)
                view = view[written:]

    def _advance(self, written: int) -> None:
        """Count bytes written, and let go of those that lie far enough behind to be on disk, or on their way."""
        self.position += written
        if self.position - self._dropped >= FORGET_BYTES:
            drop_pages(self._fd, max(0, self._dropped - FORGET_BYTES), self.position - self._dropped + FORGET_BYTES)
            self._dropped = self.position

    def copy_from(self, source_fd: int, size: int) -> None:
        """Append ``size`` bytes of an open file, copied in the kernel (shared on disk where the file system can).

        They are read once all the same, for the hash. Falls back to reading and writing across file systems.
        """
        offset = 0
        while offset < size:
            step = min(_COPY_BYTES, size - offset)
            with explained(self.path):
                try:
                    copied = os.copy_file_range(source_fd, self._fd, step, offset_src=offset)
                except OSError as error:
                    if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                        raise
                    data = os.pread(source_fd, step, offset)
                    self.write(data)
                    copied = len(data)
                else:
                    self._digest.update(os.pread(source_fd, copied, offset))
                    self._advance(copied)
            if copied == 0:
                raise InputError("the source ended early", where=str(self.path), fix="is it still being written?")
            offset += copied
            if offset % FORGET_BYTES < copied:
                drop_pages(source_fd, 0, offset)

    def commit(self, before_rename: Callable[[str], None] | None = None) -> str:
        """Sync, rename to the final name, sync the folder. Returns the sha256 of the content.

        ``before_rename`` is called with that sha256 once the content is durable and still under its partial name.
        """
        sha256 = self._digest.hexdigest()
        with explained(self.path):
            os.fsync(self._fd)
            drop_pages(self._fd, 0, 0)
        if before_rename is not None:
            before_rename(sha256)
        with explained(self.path):
            self.partial.rename(self.path)
            self._close()
            sync_folder(self.path.parent)
        return sha256

    def abort(self) -> None:
        """Give up: remove the partial file, so that it takes no space."""
        if self._fd >= 0:
            self.partial.unlink(missing_ok=True)  # while the lock is held: afterwards it may be another process's
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class explained:
    """Context that turns the operating system's refusals into errors with a remedy."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        where = str(self.path)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RefusedError(
                "the disk is full", where=where, fix="free space and run the same command again"
            ) from None
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise InputError(f"cannot write: {error.strerror}", where=where, fix="choose a writable folder") from None
        raise InputError(f"cannot write: {error.strerror}", where=where) from None


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes) -> str:
    """Write a small file whole, atomically. Returns its sha256."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    writer = FileWriter(path)
    try:
        writer.write(data)
        return writer.commit()
    except BaseException:
        writer.abort()
        raise
