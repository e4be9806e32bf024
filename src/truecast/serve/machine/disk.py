"""On which file system files lie, and how fast they are read from there: past the page cache, which would lie."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from truecast.serve.machine.facts import FileSystem, ReadRate

MOUNTS = Path("/proc/self/mounts")
BLOCK = 8 << 20
SAMPLE = 512 << 20
"""Bytes that are read at most."""
PATIENCE = 8.0
"""Seconds after which no further block is begun."""
READERS = 8
"""As many as SGLang's loader has (model_loader/loader.py: eight threads)."""
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def file_system(path: Path) -> FileSystem | None:
    """Of the nearest folder that exists; None where the kernel's table of mounts cannot be read."""
    real = path.resolve()
    while not real.exists() and real != real.parent:
        real = real.parent
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        sizes = os.statvfs(real)
    except OSError:
        return None
    best: tuple[str, str] | None = None
    for line in lines:
        mount, kind = (_plain(part) for part in line.split()[1:3])
        # of two on one folder the later covers the earlier
        if real.is_relative_to(mount) and (best is None or len(mount) >= len(best[0])):
            best = mount, kind
    if best is None:
        return None
    return FileSystem(best[1], best[0], sizes.f_blocks * sizes.f_frsize, sizes.f_bavail * sizes.f_frsize)


def _plain(text: str) -> str:
    for escape, meant in _ESCAPES.items():
        text = text.replace(escape, meant)
    return text


def read_rate(files: Sequence[Path]) -> ReadRate | None:
    """Read blocks spread over all the files, by eight threads. None if there is nothing on a disk to be read.

    Files with holes are left out: what is not stored takes no time.
    """
    whole = [path for path in files if _stored(path)]
    blocks = list(_spread(whole))
    if not blocks or any((found := file_system(path)) is None or found.in_memory for path in {p for p, _ in blocks}):
        return None
    direct = all(_opens_direct(path) for path in {path for path, _ in blocks})
    begun = time.monotonic()

    def read(block: tuple[Path, int]) -> int:
        return 0 if time.monotonic() - begun > PATIENCE else _read(*block, direct=direct)

    try:
        with ThreadPoolExecutor(READERS) as pool:
            done = sum(pool.map(read, blocks))
    except OSError:
        return None
    seconds = time.monotonic() - begun
    if not done:
        return None
    past = "past the page cache (O_DIRECT)" if direct else "after asking the kernel to forget them"
    return ReadRate(done, seconds, f"{len({p for p, _ in blocks})} files, {READERS} threads, {past}")


def cached(files: Sequence[Path]) -> float | None:
    """Share of these files that the page cache holds, from samples; nothing is read from a disk.

    None where there is nothing to sample, or the file system cannot tell.
    """
    places = [(path, offset) for path, offset in _spread([path for path in files if _stored(path)])]
    if not places:
        return None
    found = [_in_cache(path, offset) for path, offset in places]
    return None if None in found else sum(map(bool, found)) / len(found)


def _in_cache(path: Path, offset: int) -> bool | None:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:  # it would have to be fetched
        return False
    except OSError:
        return None
    finally:
        os.close(file)


def _stored(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_size >= BLOCK and found.st_blocks * 512 >= 0.9 * found.st_size


def _spread(files: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """Blocks at even distances over the length of all files."""
    blocks = [(path, offset) for path in files for offset in range(0, path.stat().st_size - BLOCK + 1, BLOCK)]
    step = max(1, len(blocks) * BLOCK // SAMPLE)
    yield from blocks[::step][: SAMPLE // BLOCK]


def _opens_direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def _read(path: Path, offset: int, *, direct: bool) -> int:
    file = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    try:
        if not direct:
            os.posix_fadvise(file, offset, BLOCK, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(-1, BLOCK) as page:  # O_DIRECT wants memory that begins at a page
            return os.preadv(file, [page], offset)
    finally:
        os.close(file)
