"""Reading the scales (and codes where needed) before any byte is written: will the cast be exact, and under which m?

The scan finds every byte 255 and every half block that cannot be exact, and fixes the global exponent of each twin
group. Nothing is guessed from a sample: all scales are read, and codes wherever the scales alone do not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from truecast.casts import mxfp4_to_nvfp4, to_bf16
from truecast.checkpoint.files import ByteFile
from truecast.checkpoint.pool import run_jobs
from truecast.convert.plan import Plan
from truecast.convert.reading import Codes, SourceFiles
from truecast.errors import InputError
from truecast.formats import e8m0, exact
from truecast.layouts.base import Matrix, View, read_view

U8 = NDArray[np.uint8]


@dataclass(slots=True)
class Scan:
    """What the scan found. ``m`` maps each matrix bound for NVFP4 to the exponent of its global scale."""

    m: dict[str, int] = field(default_factory=dict)
    half_blocks: int = 0
    inexact_half_blocks: int = 0
    inexact_matrices: dict[str, int] = field(default_factory=dict)
    """Matrix -> half blocks (for BF16: elements) that cannot be exact."""
    near_overflow: list[str] = field(default_factory=list)
    """Matrices whose largest block times 6 overflows float32."""

    def merge(self, other: Scan) -> None:
        """Add what another part of the scan found."""
        self.m.update(other.m)
        self.half_blocks += other.half_blocks
        self.inexact_half_blocks += other.inexact_half_blocks
        self.inexact_matrices.update(other.inexact_matrices)
        self.near_overflow += other.near_overflow


@dataclass(frozen=True, slots=True)
class _Job:
    files: SourceFiles
    groups: list[list[Matrix]]
    target_format: str
    target_dialect: str


def scan(plan: Plan, jobs: int = 1, progress: Callable[[int], None] | None = None) -> Scan:
    """Scan every matrix that the plan casts, ``jobs`` processes at a time. ``progress`` is told bytes as they are done.

    Raises: InputError for a NaN scale or a global scale that is not positive and finite, naming matrix, row and block.
    """
    result = Scan()
    files = SourceFiles(plan.source.opener)
    parts = [_Job(files, groups, plan.layout.FORMAT, plan.layout.DIALECT) for groups in _by_shard(plan.twin_groups)]
    with closing(run_jobs(_scan_groups, parts, jobs)) as results:
        for part, job in results:
            result.merge(part)
            if progress:
                progress(sum(m.rows * m.cols // 2 for group in job.groups for m in group))
    result.inexact_matrices = dict(sorted(result.inexact_matrices.items()))  # parts come in no fixed order
    result.near_overflow.sort()
    return result


def _by_shard(groups: Iterable[list[Matrix]]) -> list[list[list[Matrix]]]:
    by_shard: dict[str, list[list[Matrix]]] = {}
    for group in groups:
        by_shard.setdefault(group[0].codes.tensor.file, []).append(group)
    return list(by_shard.values())


def _scan_groups(job: _Job) -> Scan:
    result = Scan()
    with job.files.open() as read:
        for group in job.groups:
            if job.target_format == "nvfp4":
                _scan_nvfp4(group, read, job.target_dialect, result)
            elif job.target_format == "bf16":
                _scan_bf16(group, read, result)
            else:
                for matrix in group:
                    check_scales(matrix, read_view(matrix.scale, read(matrix.scale.tensor.file)))
    return result


def _scan_nvfp4(group: list[Matrix], read: Callable[[str], ByteFile], dialect: str, result: Scan) -> None:
    scales = [read_view(m.scale, read(m.scale.tensor.file)) for m in group]
    for matrix, scale in zip(group, scales, strict=True):
        check_scales(matrix, scale)
        result.half_blocks += scale.size * (2 if matrix.layout.startswith("mxfp4") else 1)
    sources = [(m, s) for m, s in zip(group, scales, strict=True) if m.layout.startswith("mxfp4")]
    if len(sources) < len(group):
        _scan_relayout([m for m in group if not m.layout.startswith("mxfp4")], read, dialect, result)
    if not sources:
        return
    chosen, k_max = _choose([(s, Codes(m, read)) for m, s in sources])
    for matrix, _ in sources:
        result.m[matrix.name] = chosen.m
    if chosen.inexact_half_blocks:
        result.inexact_half_blocks += chosen.inexact_half_blocks
        result.inexact_matrices[sources[0][0].name] = chosen.inexact_half_blocks
    if k_max >= 126:  # 6 * 2^126 > 2^128
        result.near_overflow += [m.name for m, _ in sources]


def _choose(members: list[tuple[U8, Codes]]) -> tuple[exact.GlobalExponent, int]:
    """Global exponent of a twin group, and its k_max. Codes are read only where the scales leave the question open.

    If the block with the largest scale byte is live, and no live block lies more than 17 below, that settles m.
    """
    top = -1
    for scales, codes in sorted(members, key=lambda member: -int(member[0].max())):
        if int(scales.max()) > top:
            top = max(top, _largest_live(scales, codes))
    if top < 0:
        return exact.GlobalExponent(0, 0), 0
    k_max = top - e8m0.BIAS
    if not any(_live_below(s, codes, top - exact.WINDOW) for s, codes in members):
        return exact.GlobalExponent(exact.preferred_exponent(k_max), 0), k_max
    histogram = sum(mxfp4_to_nvfp4.reach_histogram(codes.packed(), s) for s, codes in members)
    return exact.choose_global_exponent(np.asarray(histogram)), k_max


def _largest_live(scales: U8, codes: Codes) -> int:
    """Largest scale byte over a block that is not all zero; -1 if all are. Mostly the first block tried is it."""
    row, group = np.unravel_index(int(scales.argmax()), scales.shape)
    if (codes.blocks(np.array([row]), np.array([group])) & 0x77).any():
        return int(scales[row, group])
    live = scales[(codes.packed().reshape(*scales.shape, 16) & 0x77).any(axis=-1)]
    return int(live.max()) if live.size else -1


def _live_below(scales: U8, codes: Codes, byte: int) -> bool:
    """Is there a block below this scale byte that is not all zero?"""
    if byte <= int(scales.min()):
        return False
    rows, groups = np.nonzero(scales < np.uint8(byte))
    return bool((codes.blocks(rows, groups) & 0x77).any())


def _scan_relayout(group: list[Matrix], read: Callable[[str], ByteFile], dialect: str, result: Scan) -> None:
    """NVFP4 to another NVFP4 dialect: exact where the global scale survives the change of convention."""
    for matrix in group:
        assert matrix.global_scale is not None
        value = read_global_scale(matrix, read)
        if (dialect == "compressed-tensors") != matrix.layout.endswith("compressed-tensors"):
            inverted(value, matrix.global_scale)
            if np.frexp(value)[0] != 0.5:
                result.inexact_matrices[matrix.name] = matrix.rows * matrix.cols // 16
                result.inexact_half_blocks += matrix.rows * matrix.cols // 16


def _scan_bf16(group: list[Matrix], read: Callable[[str], ByteFile], result: Scan) -> None:
    for matrix in group:
        scale = read_view(matrix.scale, read(matrix.scale.tensor.file))
        check_scales(matrix, scale)
        result.half_blocks += scale.size * (2 if matrix.layout.startswith("mxfp4") else 1)
        if matrix.layout.startswith("mxfp4"):
            if int(scale.max()) - e8m0.BIAS < to_bf16.OVERFLOW_EXPONENT:
                continue
            packed = read_view(matrix.codes, read(matrix.codes.tensor.file))
            inexact = to_bf16.from_mxfp4(packed, scale)[1]
        else:
            packed = read_view(matrix.codes, read(matrix.codes.tensor.file))
            divides = matrix.layout.endswith("compressed-tensors")
            inexact = to_bf16.from_nvfp4(packed, scale, read_global_scale(matrix, read), divides)[1]
        if inexact:
            result.inexact_matrices[matrix.name] = inexact


def check_scales(matrix: Matrix, scale: U8) -> None:
    """Refuse a NaN among block scales. Raises: InputError naming tensor, row and block."""
    if matrix.layout.startswith("mxfp4"):
        if int(scale.max()) < e8m0.NAN:
            return
        bad = scale == e8m0.NAN
    else:
        bad = (scale & 0x7F) == 0x7F
    if bad.any():
        row, block = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"{matrix.name}: block scale is NaN (byte {int(scale[row, block])}) at row {row}, block {block}"
            f"{'' if int(bad.sum()) == 1 else f', and in {int(bad.sum()) - 1} more blocks'}",
            where=matrix.scale.tensor.where,
            fix="download the shard again, or ask whoever made it",
        )


def read_global_scale(matrix: Matrix, read: Callable[[str], ByteFile]) -> np.float32:
    """The stored global scale. Raises: InputError if it is not positive and finite."""
    assert matrix.global_scale is not None
    return read_scalar(matrix.global_scale, read, "global scale")


def read_scalar(view: View, read: Callable[[str], ByteFile], what: str) -> np.float32:
    """A stored float32 scale. Raises: InputError if it is not positive and finite."""
    value = read_view(view, read(view.tensor.file)).view(np.float32)[0, 0]
    if not (np.isfinite(value) and value > 0):
        raise InputError(f"{what} is {value}; it must be positive and finite", where=view.tensor.where)
    return np.float32(value)


def inverted(value: np.float32, view: View) -> np.float32:
    """One over a scale, for the dialect that divides. Raises: InputError where float32 does not hold it."""
    with np.errstate(over="ignore"):
        inverse = np.float32(1) / value
    if not np.isfinite(inverse):
        raise InputError(f"scale is {value}, and one over it is beyond float32", where=view.tensor.where)
    return np.float32(inverse)
