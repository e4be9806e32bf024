"""The source's files, opened once each inside a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import ByteFile, Opener
from truecast.layouts.base import Matrix, read_view

U8 = NDArray[np.uint8]

FEW_BLOCKS = 256
"""Up to so many blocks of a matrix are fetched one by one rather than with the whole matrix."""


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


class Codes:
    """A matrix's packed codes, read only as far as they are asked for."""

    def __init__(self, matrix: Matrix, read: Callable[[str], ByteFile]) -> None:
        self._view, self._shape = matrix.codes, (matrix.rows, matrix.cols // 2)
        self._file = read(matrix.codes.tensor.file)
        self._packed: U8 | None = None

    @property
    def stored_together(self) -> bool:
        """Do they fill a stored tensor of their own, row after row?"""
        return self._view.entry is None and self._view.row_step == 1 and not self._view.transposed

    def packed(self) -> U8:
        """All of them. Shape: ``[N, K/2]``."""
        if self._packed is None:
            self._packed = read_view(self._view, self._file)
        return self._packed

    def blocks(self, rows: NDArray[np.int64], groups: NDArray[np.int64]) -> U8:
        """Those of some blocks of 32. Shapes: rows ``[n]``, block numbers ``[n]`` -> ``[n, 16]``."""
        if self._packed is None and self.stored_together and rows.size <= FEW_BLOCKS:
            starts = self._view.tensor.start + rows * self._shape[1] + groups * 16
            data = b"".join(self._file.read(int(start), int(start) + 16) for start in starts)
            return np.frombuffer(data, dtype=np.uint8).reshape(-1, 16)
        return self.packed().reshape(self._shape[0], -1, 16)[rows, groups]
