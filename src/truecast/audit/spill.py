"""Hidden states on disk: one file for each array of all rows, kept in memory too as long as there is room.

A state is written through: the file is what a run that was killed goes on from.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from truecast.checkpoint.source import stamp
from truecast.checkpoint.writer import explained
from truecast.errors import RefusedError

SUFFIX = ".rows"


class Store:
    """Arrays ``[all rows, hidden]`` by name, written and read tile by tile.

    ``sizes``: rows of each tile. ``budget``: bytes of states that may stay in memory beside their files.
    """

    def __init__(self, folder: Path, sizes: Sequence[int], hidden: int, dtype: torch.dtype, budget: int) -> None:
        self._folder, self._hidden, self._dtype, self._budget = folder, hidden, dtype, budget
        self._row_bytes = hidden * dtype.itemsize
        self._sizes = list(sizes)
        self._starts = [sum(sizes[:i]) * self._row_bytes for i in range(len(sizes))]
        self._kept: dict[str, dict[int, torch.Tensor]] = {}
        self._used = 0
        self._files: dict[str, int] = {}
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def bytes_each(self) -> int:
        """Size of one array."""
        return sum(self._sizes) * self._row_bytes

    def write(self, name: str, tile: int, rows: torch.Tensor) -> None:
        """Store one tile of array ``name``. Shape: ``[tile's rows, hidden]``. Raises: RefusedError on a full disk."""
        rows = rows.detach().to("cpu", self._dtype).contiguous()
        view = _bytes(rows)
        position = self._starts[tile]
        with explained(self._path(name)):
            while view:
                done = os.pwrite(self._file(name), view, position)
                view, position = view[done:], position + done
        size = rows.numel() * rows.element_size()
        if self._used + size <= self._budget:
            if rows.untyped_storage().nbytes() > size:
                rows = rows.clone()
            self._kept.setdefault(name, {})[tile] = rows
            self._used += size

    def read(self, name: str, tile: int) -> torch.Tensor:
        """One tile of array ``name``, on the CPU; not to be changed in place. Raises: RefusedError where it is cut."""
        if (kept := self._kept.get(name, {}).get(tile)) is not None:
            return kept
        rows = torch.empty((self._sizes[tile], self._hidden), dtype=self._dtype)
        view, position = _bytes(rows), self._starts[tile]
        with explained(self._path(name)):
            while view:
                done = os.preadv(self._file(name), [view], position)
                if done == 0:
                    raise RefusedError(
                        "is shorter than it was",
                        where=str(self._path(name)),
                        fix="remove the output folder, start again",
                    )
                view, position = view[done:], position + done
        return rows

    def let_go(self, name: str, tile: int) -> None:
        """A tile will not be read again soon: its file is enough."""
        if (rows := self._kept.get(name, {}).pop(tile, None)) is not None:
            self._used -= rows.numel() * rows.element_size()

    def sync(self) -> None:
        """Make everything written so far durable."""
        for name, fd in self._files.items():
            with explained(self._path(name)):
                os.fsync(fd)

    def stamps(self, names: Iterable[str]) -> dict[str, list[int]]:
        """Size and mtime (ns) of the files of these arrays; to be asked for when they are durable."""
        found = {}
        for name in sorted(names):
            with explained(self._path(name)):
                found[name] = stamp(self._path(name))
        return found

    def check(self, stamps: Mapping[str, list[int]]) -> None:
        """Raises: RefusedError where a file is not as it was when :meth:`stamps` was asked for."""
        for name, then in stamps.items():
            path = self._path(name)
            if path.is_symlink() or not path.is_file() or stamp(path) != then:
                raise RefusedError(
                    "is not as the audit left it", where=str(path), fix="remove the output folder, start again"
                )

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove every array but these, from memory and disk."""
        wanted = set(names)
        for path in self._folder.glob(f"*{SUFFIX}"):
            name = path.name.removesuffix(SUFFIX)
            if name not in wanted:
                for rows in self._kept.pop(name, {}).values():
                    self._used -= rows.numel() * rows.element_size()
                if (fd := self._files.pop(name, None)) is not None:
                    os.close(fd)
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; they stay."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
        self._kept.clear()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"

    def _file(self, name: str) -> int:
        if name not in self._files:
            self._files[name] = os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        return self._files[name]


def _bytes(rows: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    whole: Any = rows.view(torch.uint8).numpy()
    return memoryview(whole).cast("B")
