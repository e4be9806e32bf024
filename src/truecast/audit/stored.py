"""Stored bytes: how many were read, whether they stayed as they were, and scalars that are needed before a layer is."""

from __future__ import annotations

import threading

import numpy as np

from truecast.checkpoint.files import ByteFile, Opener
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError, RefusedError
from truecast.layouts.base import View, read_view


class CountedOpener:
    """Opens the same files as another opener, and counts the bytes that are read from them."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self.bytes = 0

    def __call__(self, name: str) -> ByteFile:
        """See :class:`truecast.checkpoint.files.Opener`."""
        return _CountedFile(self._opener(name), self)

    def add(self, size: int) -> None:
        """Note bytes read; from any thread."""
        with self._lock:
            self.bytes += size


class _CountedFile:
    """A file whose reads are counted."""

    def __init__(self, file: ByteFile, counter: CountedOpener) -> None:
        self._file, self._counter = file, counter
        self.size, self.chunk_bytes = file.size, file.chunk_bytes

    def read(self, start: int, end: int) -> bytes:
        """See :class:`truecast.checkpoint.files.ByteFile`."""
        data = self._file.read(start, end)
        self._counter.add(len(data))
        return data

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See :class:`truecast.checkpoint.files.ByteFile`."""
        self._file.read_into(start, buffer)
        self._counter.add(len(buffer))

    def forget(self, start: int, end: int) -> None:
        """See :class:`truecast.checkpoint.files.ByteFile`."""
        self._file.forget(start, end)

    def close(self) -> None:
        """See :class:`truecast.checkpoint.files.ByteFile`."""
        self._file.close()


def count_reads(checkpoint: Checkpoint) -> CountedOpener:
    """From now on count what is read from the checkpoint's files."""
    counter = CountedOpener(checkpoint.opener)
    checkpoint.opener = counter
    return counter


Stamps = dict[str, list[int]]
"""See :meth:`truecast.checkpoint.source.Checkpoint.stamps`."""


def check_unchanged(checkpoint: Checkpoint, stamps: Stamps) -> None:
    """Raises: RefusedError where a local shard is not as it was when ``stamps`` were taken: figures would mix two."""
    try:
        now = checkpoint.stamps()
    except OSError:
        now = {}
    changed = [name for name, stamp in stamps.items() if now.get(name) != stamp]
    if changed:
        raise RefusedError(
            "changed while it was read",
            where=f"{checkpoint.location}/{changed[0]}",
            fix="use a checkpoint at rest, and start again",
        )


def read_scalar(view: View, checkpoint: Checkpoint) -> float:
    """A stored scale of a whole tensor: F32, F16 or BF16. Raises: InputError for another dtype."""
    file = checkpoint.opener(view.tensor.file)
    try:
        data = read_view(view, file).tobytes()
    finally:
        file.close()
    match view.tensor.dtype:
        case "F32":
            return float(np.frombuffer(data, dtype="<f4")[0])
        case "F16":
            return float(np.frombuffer(data, dtype="<f2")[0])
        case "BF16":
            return float((np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)[0])
    raise InputError(f"a scale of dtype {view.tensor.dtype} is not known", where=view.tensor.where)
