"""Reading one output file once: the same bytes that are compared are the bytes that are hashed.

No mapping of files: mapped pages would count as memory of every process that looks at them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from truecast.checkpoint.files import ByteFile, Opener, opened

CHUNK_BYTES = 1 << 18
"""Files are read in pieces of this size: both sides' pieces stay in the cache while they are hashed and compared, and
the memory for them is used again rather than returned and faulted in anew."""

_REMEMBERED = 4


class CountingFile:
    """A file that counts what was read of it and remembers the last few ranges.

    Stacked layouts interleave two matrices row by row, so both are cut out of one range; it is read once.
    ``remember`` says whether to: it costs the memory of those ranges.
    """

    def __init__(self, file: ByteFile, remember: bool = False) -> None:
        self.file, self.size, self.chunk_bytes = file, file.size, file.chunk_bytes
        self.bytes_read = 0
        self._recent: OrderedDict[tuple[int, int], bytes] | None = OrderedDict() if remember else None

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``. Raises: InputError if the file ends earlier."""
        if self._recent is None:
            return self._fetch(start, end)
        key = (start, end)
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        while len(self._recent) >= _REMEMBERED:
            self._recent.popitem(last=False)
        self._recent[key] = self._fetch(start, end)
        return self._recent[key]

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start`` on. Raises: InputError if the file ends earlier."""
        buffer[:] = self.read(start, start + len(buffer))

    def _fetch(self, start: int, end: int) -> bytes:
        self.bytes_read += end - start
        return self.file.read(start, end)

    def forget(self, start: int, end: int) -> None:
        """These bytes will not be read again soon."""
        self.file.forget(start, end)

    def close(self) -> None:
        """Release the file."""
        self.file.close()


class HashingFile(CountingFile):
    """A file whose sha256 is taken along the way.

    A read that begins at or before the position up to which the file is hashed already carries the hash on; a read
    ahead of it does not. Read in file order, the file is read once.
    """

    def __init__(self, file: ByteFile, remember: bool = False) -> None:
        super().__init__(file, remember)
        self._digest = hashlib.sha256()
        self._hashed = 0

    def _fetch(self, start: int, end: int) -> bytes:
        data = super()._fetch(start, end)
        if start <= self._hashed < end:
            self._digest.update(memoryview(data)[self._hashed - start :])
            self._hashed = end
        return data

    def advance(self, position: int) -> None:
        """Hash up to ``position``, so that a read that begins there is part of the one pass."""
        while self._hashed < position:
            self._fetch(self._hashed, min(position, self._hashed + CHUNK_BYTES))

    def finish(self) -> str:
        """sha256 of the whole file, what was not read yet included."""
        self.advance(self.size)
        return self._digest.hexdigest()


def same_ranges(a: ByteFile, a_start: int, b: ByteFile, b_start: int, size: int) -> bool:
    """Are two ranges equal? Both are read to the end in any case, so that a hash along the way is carried on."""
    same = True
    for offset in range(0, size, CHUNK_BYTES):
        end = min(offset + CHUNK_BYTES, size)
        if a.read(a_start + offset, a_start + end) != b.read(b_start + offset, b_start + end):
            same = False
    a.forget(a_start, a_start + size)
    b.forget(b_start, b_start + size)
    return same


@contextmanager
def open_files(
    opener: Opener, remember: bool
) -> Iterator[tuple[Callable[[str], CountingFile], dict[str, CountingFile]]]:
    """A function that gives the open file of a name, and the files opened so far; all are closed at the end."""
    files: dict[str, CountingFile] = {}

    def counted(name: str) -> CountingFile:
        files[name] = CountingFile(opener(name), remember)
        return files[name]

    with opened(counted) as get:
        yield get, files
