"""How far a lossy target would be from the source, measured on a sample: seconds, whatever the checkpoint's size.

**Which matrices.** Up to :data:`MATRICES`, divided evenly among the classes (names with numbers left out). The matrices
of a class stand in file order, layer by layer; that list is cut into as many equal runs as matrices are wanted, and a
seeded draw takes one of each run. Of a matrix at most :data:`STRIPS` strips of whole rows are read, evenly apart.

**What is told.** ``sqrt(sum (v - v')^2 / sum v^2)`` over the checkpoint, estimated as a ratio: each matrix counts for
all of its rows, and for its share of its class. The standard error is that of a ratio of sums of independent units, and
the unit is the matrix, since elements of one matrix are alike. It takes the draws for independent over all classes,
which makes it larger than a stratified one, never smaller on average. It says nothing of matrices unlike all others.

Source: Cochran, Sampling Techniques (1977), section 6.4, the variance of an estimated ratio.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from truecast.casts import fp8
from truecast.checkpoint.files import ByteFile, Opener, opened
from truecast.checkpoint.header import TensorInfo
from truecast.convert.int4_plan import quantized_anew
from truecast.convert.into_w4afp8 import quantized
from truecast.convert.parts import Cast
from truecast.convert.reading import read_scale
from truecast.convert.select import Selection
from truecast.errors import InputError
from truecast.formats import e8m0
from truecast.layouts.base import Matrix, View, class_of, read_view

U8 = NDArray[np.uint8]
Item = TypeVar("Item", Matrix, TensorInfo)

MATRICES = 32
"""Matrices that are cast; more where there are more classes, so that each has one."""
PLAIN = 8
"""BF16 weights that are cast to FP8 likewise."""
STRIPS = 4
STRIP_BYTES = 256 << 10
"""Codes of a strip; so at most 1 MiB of codes of one matrix."""
SEED = 0
_READERS = 8
_TILE = fp8.BLOCK[0]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Error of a cast, estimated from a sample.

    ``relative``: root of squared error over squared sum, 0..; None where the sample holds nothing but zeros.
    ``standard_error``: of ``relative``; 0 where everything was read, None where a single matrix tells nothing.
    ``matrices`` of ``population`` were looked at, ``data_bytes`` of codes (or BF16 weights) read.
    """

    relative: float | None
    standard_error: float | None
    matrices: int
    population: int
    classes: int
    data_bytes: int

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise in decibels; None where there is no error, or no signal."""
        return -20 * math.log10(self.relative) if self.relative else None

    @property
    def sqnr_standard_error_db(self) -> float | None:
        """Standard error of :attr:`sqnr_db`, to first order."""
        if not self.relative or self.standard_error is None:
            return None
        return 20 / math.log(10) * self.standard_error / self.relative


@dataclass(frozen=True, slots=True)
class Unit:
    """One matrix of the sample: sums over what was read, and how often that stands for the whole checkpoint."""

    squared_error: float
    squared_sum: float
    weight: float


def int4_error(chosen: Selection) -> Estimate | None:
    """Error of the INT4 groups that this conversion would make; None where it makes none. Reads some MB.

    Raises: InputError for a NaN scale in the sample, naming matrix, row and block.
    """
    return _estimate(quantized_anew(chosen.cast), MATRICES, chosen, _read_mxfp4, _cast_int4)


def fp8_error(chosen: Selection) -> Estimate | None:
    """Error of the BF16 weights that this conversion would make FP8; None where there are none. Reads some MB.

    Raises: InputError for NaN or infinity in the sample.
    """
    return _estimate(chosen.fp8, PLAIN, chosen, _read_plain, _cast_fp8)


def _estimate(
    population: Sequence[Item],
    wanted: int,
    chosen: Selection,
    read: Callable[[Opener, Item], _Piece],
    cast: Callable[[Selection, Item, _Piece], tuple[float, float]],
) -> Estimate | None:
    drawn = draw(population, wanted)
    if not drawn:
        return None
    units: list[Unit] = []
    read_bytes, whole = 0, len(drawn) == len(population)
    with ThreadPoolExecutor(_READERS) as pool:  # requests to a remote source wait for one another otherwise
        pieces = pool.map(partial(read, chosen.source.opener), [item for item, _ in drawn])
        for (item, weight), piece in zip(drawn, pieces, strict=True):
            error, total = cast(chosen, item, piece)
            units.append(Unit(error, total, weight * piece.of_rows / piece.rows))
            read_bytes += piece.data.nbytes
            whole &= piece.rows == piece.of_rows
    relative, spread = ratio(units)
    classes = len({class_of(item.name) for item in population})
    return Estimate(relative, 0.0 if whole else spread, len(units), len(population), classes, read_bytes)


def draw(population: Sequence[Item], wanted: int) -> list[tuple[Item, float]]:
    """An evenly spread sample, and for each of it the number of members of its class that it stands for."""
    classes: dict[str, list[Item]] = defaultdict(list)
    for item in population:
        classes[class_of(item.name)].append(item)
    generator = random.Random(SEED)
    chosen: list[tuple[Item, float]] = []
    for members, n in zip(classes.values(), _shares([len(c) for c in classes.values()], wanted), strict=True):
        bounds = [len(members) * i // n for i in range(n + 1)]
        for first, after in pairwise(bounds):
            chosen.append((members[generator.randrange(first, after)], after - first))
    return chosen


def _shares(sizes: Sequence[int], wanted: int) -> list[int]:
    """How many to take of each class: at least one, else as equal as sizes allow."""
    shares = [1] * len(sizes)
    left = wanted - len(sizes)
    while left > 0 and shares != list(sizes):
        for i, size in enumerate(sizes):
            if left > 0 and shares[i] < size:
                shares[i] += 1
                left -= 1
    return shares


def ratio(units: Sequence[Unit]) -> tuple[float | None, float | None]:
    """Relative error and its standard error; see the module's text."""
    total = math.fsum(u.weight * u.squared_sum for u in units)
    if not total:
        return None, None
    squared = math.fsum(u.weight * u.squared_error for u in units) / total
    relative, n = math.sqrt(squared), len(units)
    if n < 2:
        return relative, None
    residuals = (u.weight * (u.squared_error - squared * u.squared_sum) for u in units)
    deviation = math.sqrt(n / (n - 1) * math.fsum(r * r for r in residuals)) / total
    return relative, deviation / (2 * relative) if relative else 0.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one matrix: ``data`` ``[rows, bytes a row]``, MXFP4 scales likewise (else empty)."""

    data: U8
    scale: U8
    of_rows: int

    @property
    def rows(self) -> int:
        return int(self.data.shape[0])


def _spans(rows: int, each: int, count: int) -> list[tuple[int, int]]:
    """Up to ``count`` strips of ``each`` rows, evenly apart; all rows in one where they are no more than that."""
    if each * count >= rows:
        return [(0, rows)]
    gap = rows - each
    starts = [gap * i // (count - 1) if count > 1 else gap // 2 for i in range(count)]
    return [(start, start + each) for start in starts]


def _rows(view: View, rows: int, spans: Sequence[tuple[int, int]], file: ByteFile) -> U8:
    """These rows of a part; the whole part is read where its rows do not lie one after another."""
    if view.entry is None and view.row_step == 1 and not view.transposed:
        each = view.tensor.nbytes // rows
        data = b"".join(file.read(view.tensor.start + a * each, view.tensor.start + b * each) for a, b in spans)
        return np.frombuffer(data, dtype=np.uint8).reshape(-1, each)
    part = read_view(view, file)
    return np.concatenate([part[a:b] for a, b in spans])


def _read_mxfp4(opener: Opener, matrix: Matrix) -> _Piece:
    spans = _spans(matrix.rows, max(1, STRIP_BYTES * 2 // matrix.cols), STRIPS)
    with opened(opener) as read:
        data = _rows(matrix.codes, matrix.rows, spans, read(matrix.codes.tensor.file))
        scale = _rows(matrix.scale, matrix.rows, spans, read(matrix.scale.tensor.file))
        if int(scale.max()) == e8m0.NAN:
            read_scale(matrix, read)  # raises, and names the row of the matrix
    return _Piece(data, scale, matrix.rows)


def _cast_int4(chosen: Selection, matrix: Matrix, piece: _Piece) -> tuple[float, float]:
    target = Cast(
        "w4afp8",
        chosen.layout.DIALECT,
        method=chosen.target.method,
        importance=chosen.importance,
        calibration=chosen.calibration,
        rounding=chosen.rounding,
    )
    made = quantized(matrix, piece.data, piece.scale, target)
    return made.squared_error, made.squared_sum


def _read_plain(opener: Opener, info: TensorInfo) -> _Piece:
    rows = info.shape[0]
    tiles = random.Random(f"{SEED}:{info.name}").randrange(max(1, rows // _TILE))
    span = (tiles * _TILE, min(rows, (tiles + 1) * _TILE))
    with opened(opener) as read:
        data = _rows(View(info), rows, [span], read(info.file))
    return _Piece(data, np.empty(0, np.uint8), rows)


def _cast_fp8(chosen: Selection, info: TensorInfo, piece: _Piece) -> tuple[float, float]:
    try:
        made = fp8.quantize(piece.data.view("<u2"), fp8.BLOCK)
    except ValueError:
        raise InputError("holds NaN or infinity, which has no FP8 code", where=info.where) from None
    return made.squared_error, made.squared_sum
