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

from truecast.casts import mxfp4_to_nvfp4
from truecast.checkpoint.files import ByteFile, Opener, opened
from truecast.checkpoint.header import TensorInfo
from truecast.checkpoint.pool import run_jobs
from truecast.convert import into_bf16, into_fp8, into_w4afp8
from truecast.convert.parts import Cast
from truecast.convert.plan import Plan
from truecast.convert.reading import (
    Codes,
    check_one_global_scale,
    check_scales,
    check_stored_shape,
    inverted,
    read_global_scale,
    read_scale,
)
from truecast.formats import e8m0, exact
from truecast.layouts import format_of
from truecast.layouts.base import Matrix, read_view

U8 = NDArray[np.uint8]

GROUPS_A_JOB = 256
"""Twin groups that a worker scans before it reports progress: at most some 3 GB of Kimi-K3's experts."""


@dataclass(slots=True)
class Scan:
    """What the scan found. ``m`` maps each matrix bound for NVFP4 to the exponent of its global scale."""

    m: dict[str, int] = field(default_factory=dict)
    half_blocks: int = 0
    inexact_half_blocks: int = 0
    inexact_matrices: dict[str, int] = field(default_factory=dict)
    """Matrix -> half blocks (for BF16 and FP8: elements) that cannot be exact."""
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
    opener: Opener
    groups: list[list[Matrix]]
    plain: list[TensorInfo]
    """BF16 weights that become FP8."""
    target: Cast

    @property
    def code_bytes(self) -> int:
        """What progress counts: the bytes of the codes, and of the plain weights."""
        return sum(m.codes.bytes for group in self.groups for m in group) + sum(t.nbytes for t in self.plain)


def scan(plan: Plan, jobs: int = 1, progress: Callable[[int], None] | None = None) -> Scan:
    """Scan every matrix that the plan casts, ``jobs`` processes at a time. ``progress`` is told bytes as they are done.

    Raises: InputError for a NaN scale or a global scale that is not positive and finite, naming matrix, row and block.
    """
    result = Scan()
    opener = plan.source.opener
    target = plan.cast_settings()
    parts = [_Job(opener, groups, [], target) for groups in _by_shard(plan.twin_groups)]
    parts += [_Job(opener, [], plain, target) for plain in _plain_by_shard(plan.fp8)]
    with closing(run_jobs(_scan_part, parts, jobs)) as results:
        for part, job in results:
            result.merge(part)
            if progress:
                progress(job.code_bytes)
    result.inexact_matrices = dict(sorted(result.inexact_matrices.items()))  # parts come in no fixed order
    result.near_overflow.sort()
    return result


def scan_bytes(plan: Plan) -> int:
    """What ``progress`` adds up to."""
    return sum(m.codes.bytes for m in plan.cast) + sum(t.nbytes for t in plan.fp8)


def _by_shard(groups: Iterable[list[Matrix]]) -> list[list[list[Matrix]]]:
    by_shard: dict[str, list[list[Matrix]]] = {}
    for group in groups:
        by_shard.setdefault(group[0].codes.tensor.file, []).append(group)
    return [g[i : i + GROUPS_A_JOB] for g in by_shard.values() for i in range(0, len(g), GROUPS_A_JOB)]


def _plain_by_shard(plain: Iterable[TensorInfo]) -> list[list[TensorInfo]]:
    by_shard: dict[str, list[TensorInfo]] = {}
    for info in plain:
        by_shard.setdefault(info.file, []).append(info)
    return list(by_shard.values())


def _scan_part(job: _Job) -> Scan:
    result = Scan()
    with opened(job.opener) as read:
        for group in job.groups:
            for matrix in group:
                check_stored_shape(matrix, read)
            if job.target.format == "nvfp4":
                _scan_nvfp4(group, read, job.target.dialect, job.target.stacked, result)
            else:
                for matrix in group:
                    _scan_matrix(matrix, read, job.target, result)
        for info in job.plain:
            into_fp8.check_plain(info, read)
    return result


def _scan_matrix(matrix: Matrix, read: Callable[[str], ByteFile], target: Cast, result: Scan) -> None:
    """Targets under which a matrix stands for itself."""
    result.half_blocks += matrix.rows * matrix.cols // 16
    inexact = 0
    match target.format, format_of(matrix):
        case "bf16", _:
            read_scale(matrix, read)
            inexact = into_bf16.inexact_elements(matrix, read)
        case "fp8", _:
            inexact = into_fp8.inexact_elements(matrix, read, target.dialect)
        case "w4afp8", "w4afp8":
            into_w4afp8.bf16_scales(matrix, read)
        case _:
            read_scale(matrix, read)
    if inexact:
        result.inexact_matrices[matrix.name] = inexact


def _scan_nvfp4(
    group: list[Matrix], read: Callable[[str], ByteFile], dialect: str, stacked: bool, result: Scan
) -> None:
    scales = [read_view(m.scale, read(m.scale.tensor.file)) for m in group]
    for matrix, scale in zip(group, scales, strict=True):
        check_scales(matrix, scale)
        result.half_blocks += scale.size * (2 if format_of(matrix) == "mxfp4" else 1)
    sources = [(m, s) for m, s in zip(group, scales, strict=True) if format_of(m) == "mxfp4"]
    if stacked and len(sources) < len(group):
        check_one_global_scale(group, read)
    if len(sources) < len(group):
        _scan_relayout([m for m in group if format_of(m) != "mxfp4"], read, dialect, result)
    if not sources:
        return
    m, k_max, inexact = _choose([(s, Codes(m, read)) for m, s in sources])
    for (matrix, _), count in zip(sources, inexact, strict=True):
        result.m[matrix.name] = m
        if count:
            result.inexact_matrices[matrix.name] = count
            result.inexact_half_blocks += count
    if k_max >= 126:  # 6 * 2^126 > 2^128
        result.near_overflow += [m.name for m, _ in sources]


def _choose(members: list[tuple[U8, Codes]]) -> tuple[int, int, list[int]]:
    """Global exponent of a twin group, its k_max, and for each matrix the half blocks that cannot be exact.

    Codes are read only where the scales leave the question open.

    If the block with the largest scale byte is live, and no live block lies more than 17 below, that settles m.
    """
    top = -1
    for scales, codes in sorted(members, key=lambda member: -int(member[0].max())):
        if int(scales.max()) > top:
            top = max(top, _largest_live(scales, codes))
    if top < 0:
        return 0, 0, [0] * len(members)
    k_max = top - e8m0.BIAS
    if not any(_live_below(s, codes, top - exact.WINDOW) for s, codes in members):
        return exact.preferred_exponent(k_max), k_max, [0] * len(members)
    histograms = [mxfp4_to_nvfp4.reach_histogram(codes.packed(), s) for s, codes in members]
    m = exact.choose_global_exponent(np.sum(histograms, axis=0)).m
    return m, k_max, [exact.count_inexact(histogram, m) for histogram in histograms]


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
