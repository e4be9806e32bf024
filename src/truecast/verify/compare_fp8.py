"""An FP8 matrix against what it was made of: an MXFP4 matrix, the same FP8 matrix, or a plain BF16 tensor.

From MXFP4 and from FP8 every value must be the same, minus zero included; both sides are exact in float64 (codes of at
most 4 bits times scales of at most 24), so equal float64 numbers are equal values. Elements that the manifest lists as
rounded must be the nearest ones, ties to even, under a scale that is a power of two, and the least that clips none: so
what is lost is lost at the small end.

From BF16 the cast loses, so it is judged: the block scale must be the largest magnitude over 448 in float32, and each
code the E4M3 nearest to the float32 quotient of value and scale, as the manifest's bytes were made. How many codes are
nearest in exact arithmetic is counted apart (the rounded quotient may fall on a tie that the exact one misses).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.errors import InputError
from truecast.formats import e2m1, e4m3, e8m0, packing
from truecast.layouts import LAYOUTS
from truecast.verify.compare import check_source
from truecast.verify.compare_int4 import check_approximates, check_figures
from truecast.verify.matrix import First, MatrixResult
from truecast.verify.quality import Figures
from truecast.verify.rounding import e4m3_bytes
from truecast.verify.rules import Rules
from truecast.verify.scaled import TILE, Scaled, fixed
from truecast.verify.stored import Packed, PlainRows

U8 = NDArray[np.uint8]
F64 = NDArray[np.float64]

_ELEMENTS = 1 << 19  # decoded at a time
_LEAST = np.float32(2.0**-126)


def prepare() -> None:
    """Compile the judge, or load it compiled, so that several processes do not do that at once."""
    from truecast.verify.fp8_kernel import judge_codes

    values, codes, scale = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.uint8), np.ones(1, np.float32)
    judge_codes(values, fixed(codes), fixed(scale), TILE, np.zeros(4, np.int64), np.zeros(2))


def compare_fp8(source: Packed | Scaled, out: Scaled, rules: Rules) -> MatrixResult:
    """Compare an FP8 matrix with an MXFP4 one, or with itself in another dialect.

    Raises: InputError for a source with NaN scales.
    """
    if isinstance(source, Packed):
        check_source(source)
    result = MatrixResult(out.stored)
    if not _check_legal(out, result):
        return result
    wrong, rounded, larger = First(), First(), First()
    allowed = rules.rounded.get(out.stored.name, 0) if rules.allow_inexact and isinstance(source, Packed) else 0
    for first, last in _chunks(out):
        before = _mxfp4_values(source, first, last) if isinstance(source, Packed) else source.values(first, last)
        after = out.values(first, last)
        differing = (before != after) | (np.signbit(before) != np.signbit(after))
        if not differing.any():
            continue
        if allowed:
            scale = np.broadcast_to(out.expanded(first, last), before.shape)
            nearest = _is_rounded(before, out.codes[first:last], scale)
            _note_larger(larger, differing, before, scale, first, _region(out))
            _note(rounded, differing & nearest, first, before, after)
            differing &= ~nearest
        _note(wrong, differing, first, before, after)
    wrong.tell(result, "value", "codes", "elements differ")
    larger.tell(result, "scale", "scale", "scales are so")
    result.counts.inexact_elements = rounded.count
    if rounded.count != allowed:
        result.fail("inexact", "codes", f"{rounded.count} values are rounded, the manifest says {allowed}")
    return result


def compare_recast(source: PlainRows, out: Scaled, rules: Rules) -> MatrixResult:
    """Judge an FP8 matrix by blocks made of a plain BF16 tensor.

    Raises: InputError for a source with NaN or infinity.
    """
    result = MatrixResult(out.stored)
    if not _check_legal(out, result):
        return result
    negative = np.argwhere(out.factors < 0)
    if negative.size:
        row, column = (int(i) * TILE for i in negative[0])
        result.fail("scale", "scale", "block scale is negative", row, column)
        return result
    from truecast.verify.fp8_kernel import judge_codes

    codes, scales, figures = First(), First(), Figures(matrices=1, elements=out.stored.rows * out.stored.cols)
    sums = np.zeros(2)
    for first, last in _tile_rows(out):
        values = _finite(source, first, last)
        wanted = _block_scales(values)
        own = out.factors[first // TILE]
        for tile in np.flatnonzero(wanted.view(np.uint32) != own.view(np.uint32)):
            why = f"block scale is {float(own[tile])!r}, the largest magnitude gives {float(wanted[tile])!r}"
            scales.note(first, int(tile) * TILE, why)
        counts = np.zeros(4, np.int64)
        judge_codes(values, fixed(out.codes[first:last]), fixed(own), TILE, counts, sums)
        if counts[0]:
            row, column = int(counts[2]), int(counts[3])
            prescribed = int(e4m3_bytes(np.minimum(values[row, column : column + 1] / own[column // TILE], 512))[0])
            why = f"code is {int(out.codes[first + row, column])}, the value over its block scale gives {prescribed}"
            codes.note(first + row, column, why)
            codes.count += int(counts[0]) - 1
        figures.nearest += int(counts[1])
    figures.squared_error, figures.squared_sum = (float(x) for x in sums)
    result.figures = figures
    check_approximates(result, rules.fp8 is not None)
    if rules.fp8 is not None:
        codes.tell(result, "value", "codes", "codes are not")
        scales.tell(result, "scale", "scale", "block scales are not")
        if out.stored.name in rules.fp8:
            check_figures(result, rules.fp8[out.stored.name], "fp8")
        else:
            result.fail("manifest", "codes", "is FP8, the source has BF16, and the manifest does not say so")
    return result


def _check_legal(out: Scaled, result: MatrixResult) -> bool:
    bad = np.argwhere(~(np.isfinite(out.factors) & (out.factors != 0)))
    if bad.size:
        why = f"scale is {float(out.factors[tuple(bad[0])])}; it must be finite and not zero"
        down, across = _region(out)
        result.fail("scale", "scale", why, int(bad[0][0]) * down, int(bad[0][1]) * across)
        return False
    nan = (out.codes & 0x7F) == 0x7F
    if nan.any():
        row, column = (int(i) for i in np.argwhere(nan)[0])
        result.fail("value", "codes", "code is NaN", row, column)
        return False
    return True


def _note(found: First, places: NDArray[np.bool_], first: int, before: F64, after: F64) -> None:
    where = np.argwhere(places)
    for row, column in where[:1]:
        why = f"value is {float(after[row, column])!r}, the source has {float(before[row, column])!r}"
        found.note(first + int(row), int(column), why)
        found.count += len(where) - 1


def _mxfp4_values(source: Packed, first: int, last: int) -> F64:
    if source.global_scale is not None:
        raise InputError(
            f"{source.stored.name} is NVFP4, which FP8 is not held against", where=source.stored.main.tensor.where
        )
    values = e2m1.VALUES[packing.unpack_nibbles(source.codes[first:last])].astype(np.float64)
    exponents = np.repeat(e8m0.exponents(source.scale[first:last]).astype(np.int32), 32, axis=1)
    return np.asarray(np.ldexp(values, exponents))


def _is_rounded(values: F64, codes: U8, scale: F64) -> NDArray[np.bool_]:
    """Is each code the nearest one, ties to even, the sign kept, under a scale that is a power of two?"""
    power = np.frexp(scale)[0] == 0.5
    prescribed = e4m3_bytes(np.clip(values / scale, -1e6, 1e6).astype(np.float32))  # exact under a power of two
    return np.asarray(power & (prescribed == codes))


def _note_larger(
    found: First, lost: NDArray[np.bool_], before: F64, scale: F64, first: int, region: tuple[int, int]
) -> None:
    """Scales over rounded elements that clip, or could be half as large without clipping."""
    down, across = np.arange(0, before.shape[0], region[0]), np.arange(0, before.shape[1], region[1])

    def reduced(ufunc: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(ufunc.reduceat(ufunc.reduceat(values, down, axis=0), across, axis=1))

    top = reduced(np.maximum, np.abs(before) / scale)
    fits = (top <= e4m3.MAX) & ((2 * top > e4m3.MAX) | (scale[np.ix_(down, across)] == _LEAST))
    for row, column in np.argwhere(reduced(np.logical_or, lost) & ~fits):
        place = int(down[row]), int(across[column])
        why = f"scale is {float(scale[place])!r}, which is not the least that clips no value, and values are rounded"
        found.note(first + place[0], place[1], why)


def _region(out: Scaled) -> tuple[int, int]:
    """Rows and columns under one scale."""
    return (TILE, TILE) if LAYOUTS[out.stored.layout].DIALECT == "deepseek" else (1, out.stored.cols)


def _finite(source: PlainRows, first: int, last: int) -> NDArray[np.float32]:
    bits = source.rows(first, last)
    bad = (bits & 0x7F80) == 0x7F80
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"value at row {first + row}, column {column} is NaN or infinite: FP8 has no code for it",
            where=source.stored.main.tensor.where,
            fix="the source itself is damaged: download the shard again",
        )
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _block_scales(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Largest magnitude of each tile over 448 in float32, at least 2^-126; 1 for zeros. Shape: ``[tiles in a row]``."""
    columns = np.abs(values).max(axis=0)
    largest = np.maximum.reduceat(columns, np.arange(0, columns.size, TILE))
    return np.where(largest == 0, np.float32(1), np.maximum(largest / np.float32(448), _LEAST)).astype(np.float32)


def _tile_rows(out: Scaled) -> Iterator[tuple[int, int]]:
    for row in range(0, out.stored.rows, TILE):
        yield row, min(row + TILE, out.stored.rows)


def _chunks(out: Scaled) -> Iterator[tuple[int, int]]:
    step = max(1, _ELEMENTS // out.stored.cols // TILE) * TILE  # whole tiles
    for row in range(0, out.stored.rows, step):
        yield row, min(row + step, out.stored.rows)
