"""Findings from the scales' bytes: all of them are read, codes only where the scales alone do not decide.

The work is a map over independent jobs, one a shard: :func:`scan_shard` is pure and its job can be pickled. Memory is
one matrix. What needs more than one matrix (twins, a bank's input scales) is judged afterwards from the global scales.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import ByteFile, Opener
from truecast.families.base import Family, twin_key
from truecast.formats import e4m3, e8m0
from truecast.layouts import LAYOUTS
from truecast.layouts.base import Matrix, View, group_size, read_view
from truecast.verify.check.blocks import add_scales
from truecast.verify.check.factors import check_factors
from truecast.verify.check.findings import Collector, Place
from truecast.verify.scaled import FORMATS, as_float32

U8 = NDArray[np.uint8]
Mask = NDArray[np.bool_]

_add_blocks = partial(add_scales, what="blocks")

_SAMPLE = 1 << 16  # block scales that suffice to estimate a median
_SMALLEST_NORMAL = 2.0**-126
_PLAUSIBLE = (1e-6, 1e3)
"""Typical weight magnitudes outside of this say that the global scale was read the wrong way round."""
_DIVIDES = {"compressed-tensors"}
"""Dialects whose global scale is a divisor."""


@dataclass(frozen=True, slots=True)
class ScaleJob:
    """The matrices whose scales lie in one shard."""

    opener: Opener
    file: str
    matrices: tuple[Matrix, ...]

    @property
    def scale_bytes(self) -> int:
        """Bytes of block scales to read."""
        return sum(_scale_bytes(m) for m in self.matrices)


@dataclass(slots=True)
class ScaleResult:
    """What one or more shards' scales say."""

    found: Collector = field(default_factory=Collector)
    scales: int = 0
    bytes_read: int = 0
    global_scales: dict[str, float] = field(default_factory=dict)
    """Matrix -> its global scale as stored."""

    def merge(self, other: ScaleResult) -> None:
        """Add what another shard's scales say."""
        self.found.merge(other.found)
        self.scales += other.scales
        self.bytes_read += other.bytes_read
        self.global_scales.update(other.global_scales)


def scale_jobs(opener: Opener, matrices: Iterable[Matrix]) -> list[ScaleJob]:
    """One job a shard that holds scales, in the order of the matrices."""
    by_shard: dict[str, list[Matrix]] = {}
    for matrix in matrices:
        by_shard.setdefault(matrix.scale.tensor.file, []).append(matrix)
    return [ScaleJob(opener, file, tuple(group)) for file, group in by_shard.items()]


def _scale_bytes(matrix: Matrix) -> int:
    """Bytes of block scales of one matrix, also where it shares its tensor with others."""
    if LAYOUTS[matrix.layout].FORMAT in ("mxfp4", "nvfp4"):
        return matrix.rows * matrix.cols // group_size(LAYOUTS[matrix.layout].FORMAT)
    return matrix.scale.tensor.nbytes


class _Files:
    """Open files of a job; matrices may have parts in other shards."""

    def __init__(self, opener: Opener) -> None:
        self.opener, self.files, self.bytes_read = opener, dict[str, ByteFile](), 0

    def read(self, view: View) -> U8:
        name = view.tensor.file
        if name not in self.files:
            self.files[name] = self.opener(name)
        data = read_view(view, self.files[name])
        self.bytes_read += data.nbytes
        return data

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def scan_shard(job: ScaleJob) -> ScaleResult:
    """Read and judge the scales of a job's matrices. Raises: InputError if a file cannot be read."""
    result, files = ScaleResult(), _Files(job.opener)
    judged: set[str] = set()  # one scalar may belong to a whole bank
    try:
        for matrix in job.matrices:
            scale = files.read(matrix.scale)
            if LAYOUTS[matrix.layout].FORMAT in FORMATS:
                _scan_scaled(result, matrix, scale, files, judged)
                continue
            result.scales += scale.size
            if scale.size:
                _check_block_scales(result.found, matrix, scale, files)
            for role, view in (("global", matrix.global_scale), ("input", matrix.input_scale)):
                if view is None:
                    continue
                value = float(files.read(view).reshape(-1).view("<f4")[0])
                if role == "global":
                    result.global_scales[matrix.name] = value
                if view.tensor.name not in judged:
                    judged.add(view.tensor.name)
                    _check_scalar(result.found, role, matrix, view, value, scale)
    finally:
        files.close()
    result.bytes_read = files.bytes_read
    return result


def _scan_scaled(result: ScaleResult, matrix: Matrix, scale: U8, files: _Files, judged: set[str]) -> None:
    """INT4 and FP8: scales of any sign that float32 holds, a stored shape, an input scale."""
    factors = as_float32(scale, matrix.scale.tensor.dtype)
    result.scales += factors.size
    if factors.size:
        check_factors(result.found, matrix, factors, lambda: files.read(matrix.codes))
    if matrix.shape is not None:
        view = matrix.shape
        said = files.read(view).reshape(-1).view("<i8" if view.tensor.dtype == "I64" else "<i4").tolist()
        if said != [matrix.rows, matrix.cols]:
            place = Place(view.tensor.file, view.tensor.name, matrix.name)
            result.found.add("stored-shape", place, f"says {said}, the codes are {[matrix.rows, matrix.cols]}")
    given = matrix.input_scale
    if given is not None and given.tensor.name not in judged:
        judged.add(given.tensor.name)
        value = float(as_float32(files.read(given), given.tensor.dtype)[0, 0])
        _check_scalar(result.found, "input", matrix, given, value, scale)


def _check_block_scales(found: Collector, matrix: Matrix, scale: U8, files: _Files) -> None:
    low, high = int(scale.min()), int(scale.max())
    live = None
    if LAYOUTS[matrix.layout].FORMAT == "mxfp4":
        if high == e8m0.NAN:
            _add_blocks(found, "scale-nan", matrix, scale == e8m0.NAN, "E8M0 byte 255 is NaN")
    elif low < 0x08 or high >= e4m3.NAN_BYTES[0]:
        live = _check_e4m3(found, matrix, scale, files)
    if low == high:  # no weights give every block the same scale but those that are all zero, or a constant
        live = _live_blocks(matrix, files) if live is None else live
        if not live.any():
            place = Place(matrix.codes.tensor.file, matrix.codes.tensor.name, matrix.name)
            found.add("matrix-all-zero", place, f"all {matrix.rows} x {matrix.cols} weights are zero")


def _check_e4m3(found: Collector, matrix: Matrix, scale: U8, files: _Files) -> Mask | None:
    """Findings about E4M3 bytes. Returns which blocks have a non-zero code, where that was asked."""
    magnitude = scale & 0x7F
    nan = magnitude == 0x7F
    _add_blocks(found, "scale-nan", matrix, nan, "E4M3 bytes 0x7F and 0xFF are NaN")
    negative = (scale > 0x80) & ~nan
    _add_blocks(found, "scale-negative", matrix, negative, "the block scale is negative")
    small = magnitude < 0x08
    if not small.any():
        return None
    live, zero = _live_blocks(matrix, files), magnitude == 0
    _add_blocks(found, "scale-zero", matrix, zero & live, "the scale is zero, the block's codes are not")
    _add_blocks(
        found, "scale-zero", matrix, zero & ~live, "the scale is zero, and so are the block's codes", harmless=True
    )
    subnormal = small & ~zero & live
    _add_blocks(found, "scale-subnormal", matrix, subnormal, "the scale is below 2^-6, an E4M3 subnormal")
    return live


def _live_blocks(matrix: Matrix, files: _Files) -> Mask:
    """Which blocks have a code other than +0 and -0. Shape: ``[rows, blocks]``."""
    bytes_a_block = group_size(LAYOUTS[matrix.layout].FORMAT) // 2
    words = files.read(matrix.codes).view(np.uint64).reshape(matrix.rows, -1, bytes_a_block // 8)
    return np.asarray((words & np.uint64(0x7777777777777777)).any(axis=-1))


def _check_scalar(found: Collector, role: str, matrix: Matrix, view: View, value: float, scale: U8) -> None:
    place = Place(view.tensor.file, view.tensor.name, matrix.name)
    if role == "input":
        if not (math.isfinite(value) and value > 0):
            found.add("input-scale-invalid", place, f"the input scale is {value}, not positive and finite")
    elif value == 0:
        found.add("global-scale-zero", place, "the global scale is zero")
    elif not (math.isfinite(value) and value > 0):
        found.add("global-scale-invalid", place, f"the global scale is {value}, not positive and finite")
    else:
        _check_magnitude(found, matrix, place, value, scale)


def _check_magnitude(found: Collector, matrix: Matrix, place: Place, value: float, scale: U8) -> None:
    divides = LAYOUTS[matrix.layout].DIALECT in _DIVIDES
    factor = 1 / value if divides else value
    if value < _SMALLEST_NORMAL or factor < _SMALLEST_NORMAL:
        which = "the global scale" if value < _SMALLEST_NORMAL else "the reciprocal of the global scale"
        found.add("global-scale-subnormal", place, f"{which} is {min(value, factor):.3g}, a float32 subnormal")
        return
    typical = _median_scale(scale) * 6
    as_stored, inverted = typical * factor, typical / factor
    low, high = _PLAUSIBLE
    if typical and not low <= as_stored <= high and low <= inverted <= high:
        own, other = ("divisor", "multiplier") if divides else ("multiplier", "divisor")
        found.add(
            "global-scale-convention",
            place,
            f"as the {own} that this layout stores, {value:.4g} gives weights of about {as_stored:.1e};"
            f" as a {other} about {inverted:.1e}",
        )


def _median_scale(scale: U8) -> float:
    """Median of the non-zero finite E4M3 block scales, estimated from an even sample; 0 if there is none."""
    flat = scale.reshape(-1) & 0x7F
    sample = flat[:: max(1, flat.size // _SAMPLE)]
    sample = sample[(sample != 0) & (sample != 0x7F)]
    return float(np.median(e4m3.decode(sample))) if sample.size else 0.0


def check_twins(
    found: Collector, family: Family, matrices: Mapping[str, Matrix], global_scales: Mapping[str, float]
) -> None:
    """Modules that engines fuse carry bit for bit the same global scale."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in global_scales:
        groups[twin_key(family, name)].append(name)
    for members in groups.values():
        values = [global_scales[name] for name in members]
        if len({np.float32(v).tobytes() for v in values}) == 1:
            continue
        view = matrices[members[0]].global_scale
        assert view is not None
        said = ", ".join(f"{name.rpartition('.')[2]} {value:.6g}" for name, value in zip(members, values, strict=True))
        found.add(
            "twins-differ", Place(view.tensor.file, view.tensor.name, members[0]), f"fused modules differ: {said}"
        )


def check_static_scales(found: Collector, matrices: Mapping[str, Matrix]) -> None:
    """Static activation scales of SGLang's W4AFP8: all of a bank have one, or none has."""
    groups: dict[str, list[Matrix]] = defaultdict(list)
    for matrix in matrices.values():
        if matrix.layout == "w4afp8-sglang":
            bank, experts, _ = matrix.name.rpartition(".experts.")
            groups[bank + experts if experts else matrix.name].append(matrix)
    for group in groups.values():
        absent = [m for m in group if m.input_scale is None]
        for matrix in absent if len(absent) < len(group) else []:
            place = Place(matrix.codes.tensor.file, matrix.codes.tensor.name, matrix.name)
            found.add("input-scale-partial", place, "has no input scale, though others of its bank have one")
    if groups and all(m.input_scale is None for group in groups.values() for m in group):
        message = "none of the W4AFP8 matrices has an input scale"
        found.add("input-scale-default", Place(file="config.json"), message)


def check_input_scales(found: Collector, matrices: Mapping[str, Matrix], declared: bool) -> None:
    """Within a bank all matrices have an input scale or none; with ``declared`` (W4A4) every one needs it."""
    groups: dict[str, list[Matrix]] = defaultdict(list)
    for matrix in matrices.values():
        if LAYOUTS[matrix.layout].FORMAT == "nvfp4":
            bank, experts, _ = matrix.name.rpartition(".experts.")
            groups[bank + experts if experts else matrix.name].append(matrix)
    some = any(m.input_scale for group in groups.values() for m in group)
    bare = 0
    for group in groups.values():
        absent = [m for m in group if m.input_scale is None]
        if len(absent) == len(group):
            bare += len(group)
            if not (some and declared):
                continue  # weight-only, or reported once below
        for matrix in absent:
            place = Place(matrix.codes.tensor.file, matrix.codes.tensor.name, matrix.name)
            found.add("input-scale-missing", place, "has no input scale, though others of this checkpoint have one")
    if declared and bare and not some:
        message = f"declares quantized activations, but none of the {bare} NVFP4 matrices has an input scale"
        found.add("input-scale-missing", Place(file="config.json"), message)
