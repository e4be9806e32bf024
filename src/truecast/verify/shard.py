"""Comparing all that one output file holds: the work of one process, in one pass over the file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.files import Opener
from truecast.checkpoint.header import BITS
from truecast.errors import InputError
from truecast.layouts import w4afp8_sglang
from truecast.verify.certificate import matrix_entry, tensor_entry
from truecast.verify.compare import all_zero, compare_packed, decides_global_scale
from truecast.verify.compare_bf16 import compare_bf16
from truecast.verify.compare_fp8 import compare_fp8, compare_recast
from truecast.verify.compare_int4 import compare_int4, compare_same_int4
from truecast.verify.compare_rounded import compare_rounded
from truecast.verify.importance import Importance
from truecast.verify.matrix import MatrixResult
from truecast.verify.pairing import Copy, Pair, Recast, Unit
from truecast.verify.quality import Quality
from truecast.verify.reader import CHUNK_BYTES, CountingFile, HashingFile, open_files, same_ranges
from truecast.verify.report import Counts, Failures, Inexact
from truecast.verify.rules import Rules
from truecast.verify.scaled import FORMATS, Scaled, load_multiplier, load_scaled, load_shape
from truecast.verify.stored import (
    Packed,
    PlainRows,
    Read,
    Stored,
    load_bias,
    load_packed,
    odd_bias,
    open_bf16,
    open_plain,
)


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One output file, what it is to be compared with, and how to reach both sides."""

    file: str
    units: Sequence[Unit]
    source_opener: Opener
    out_opener: Opener
    rules: Rules
    certificate: bool = False
    importance: Importance | None = None
    input_scales: Mapping[str, np.float32] | None = None
    """Activation scales by matrix, derived again from the calibration."""


@dataclass(slots=True)
class ShardResult:
    """What came of one file. ``globals``: matrix -> bits of its global scale, and whether it is all zero.

    ``deciding``: watched matrices that need their global scale to be as large as it is.
    """

    file: str
    sha256: str = ""
    counts: Counts = field(default_factory=Counts)
    failures: Failures = field(default_factory=Failures)
    inexact: list[Inexact] = field(default_factory=list)
    quality: Quality = field(default_factory=Quality)
    globals: dict[str, tuple[int, bool]] = field(default_factory=dict)
    deciding: set[str] = field(default_factory=set)
    entries: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Certificate entries: ``("matrices" | "tensors", entry)``."""


def verify_shard(job: ShardJob) -> ShardResult:
    """Compare and hash one output file.

    Raises: InputError for a faulty source, or a file that cannot be read.
    """
    result = ShardResult(job.file)
    stacked = any(isinstance(u, Pair) and (u.source.main.row_step, u.out.main.row_step) != (1, 1) for u in job.units)
    with (
        open_files(job.source_opener, stacked) as (read_source, sources),
        open_files(job.out_opener, stacked) as (
            read_elsewhere,
            others,
        ),
    ):
        file = HashingFile(job.out_opener(job.file), stacked)
        try:

            def read_out(name: str) -> CountingFile:
                return file if name == job.file else read_elsewhere(name)

            for unit in sorted(job.units, key=lambda u: u.start):
                file.advance(unit.start)
                if isinstance(unit, Copy):
                    _verify_copy(unit, read_source, read_out, job.certificate, result)
                elif isinstance(unit, Recast):
                    _verify_recast(unit, read_source, read_out, job, result)
                else:
                    _verify_pair(unit, read_source, read_out, job, result)
            result.sha256 = file.finish()
            everything = [file, *sources.values(), *others.values()]
            result.counts.bytes_read = sum(f.bytes_read for f in everything)
        finally:
            file.close()
    return result


def _verify_copy(copy: Copy, read_source: Read, read_out: Read, certificate: bool, result: ShardResult) -> None:
    source, out = copy.source, copy.out
    result.counts.copied_tensors += 1
    if (source.dtype, source.shape) != (out.dtype, out.shape):
        why = f"is {out.dtype} {list(out.shape)}, the source has {source.dtype} {list(source.shape)}"
        result.failures.add("shape", why, file=out.file, tensor=out.name)
        return
    digest = hashlib.sha256()
    source_file, out_file = read_source(source.file), read_out(out.file)
    for offset in range(0, source.nbytes, CHUNK_BYTES):
        end = min(offset + CHUNK_BYTES, source.nbytes)
        before = source_file.read(source.start + offset, source.start + end)
        after = out_file.read(out.start + offset, out.start + end)
        if before != after:
            _note_difference(copy, offset, before, after, result)
            return
        if certificate:
            digest.update(before)
    source_file.forget(source.start, source.end)
    out_file.forget(out.start, out.end)
    if certificate:
        result.entries.append(("tensors", tensor_entry(source, digest.hexdigest())))


def _note_difference(copy: Copy, offset: int, before: bytes, after: bytes, result: ShardResult) -> None:
    at = int(np.flatnonzero(np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8))[0])
    element = (offset + at) * 8 // BITS[copy.out.dtype]
    width = copy.out.shape[-1] if copy.out.shape else 1
    why = f"byte {offset + at} of this copied tensor is 0x{after[at]:02x}, the source has 0x{before[at]:02x}"
    result.failures.add(
        "bytes", why, file=copy.out.file, tensor=copy.out.name, row=element // width, column=element % width
    )


def _verify_pair(pair: Pair, read_source: Read, read_out: Read, job: ShardJob, result: ShardResult) -> None:
    if (pair.source.rows, pair.source.cols) != (pair.out.rows, pair.out.cols):
        tensor = pair.out.main.tensor
        why = f"is a matrix {pair.out.rows} x {pair.out.cols}, the source has {pair.source.rows} x {pair.source.cols}"
        result.failures.add("shape", why, file=tensor.file, tensor=tensor.name)
        return
    _check_source_shape(pair.source, read_source)
    source = _load(pair.source, read_source)
    stored: Packed | PlainRows | Scaled
    same_codes = None
    if pair.out.format == "bf16":
        stored = open_bf16(pair.out, read_out)
    else:
        if not job.certificate and isinstance(source, Packed) and pair.out.format not in FORMATS:
            same_codes = _same_codes(pair, read_source, read_out)
        stored = _load(pair.out, read_out)
    compared = _compare(source, stored, job, same_codes)
    if isinstance(stored, Packed) and stored.global_scale is not None:
        result.globals[pair.out.name] = int(stored.global_scale.view(np.uint32)), all_zero(stored)
        usable = not any(f.kind == "global_scale" for f in compared.failures)
        watched = isinstance(source, Packed) and pair.out.name in job.rules.watched and usable
        if watched and isinstance(source, Packed) and decides_global_scale(source, stored):
            result.deciding.add(pair.out.name)
    _book(compared, result)
    bias = _verify_bias(pair, read_source, read_out, result)
    _verify_input_scale(pair, read_source, read_out, job, result)
    _verify_shape(pair.out, read_out, result)
    if job.certificate and not compared.failures:
        result.entries.append(("matrices", matrix_entry(source, pair.out, stored, bias, _changed(compared))))


def _load(stored: Stored, read: Read) -> Packed | Scaled:
    return load_scaled(stored, read) if stored.format in FORMATS else load_packed(stored, read)


def _compare(
    source: Packed | Scaled, out: Packed | PlainRows | Scaled, job: ShardJob, same_codes: bool | None
) -> MatrixResult:
    """Choose the comparison that goes with the two formats."""
    rules, kinds = job.rules, (source.stored.format, out.stored.format)
    if isinstance(source, Packed):
        if isinstance(out, Packed):
            return compare_packed(source, out, rules, same_codes)
        if isinstance(out, PlainRows):
            return compare_bf16(source, out, rules)
        if kinds == ("mxfp4", "w4afp8"):
            return compare_int4(source, out, rules, _weights(out.stored, job))
        if kinds == ("mxfp4", "fp8"):
            return compare_fp8(source, out, rules)
    elif isinstance(out, PlainRows):
        return compare_rounded(source, out, rules)
    elif isinstance(out, Scaled) and kinds == ("w4afp8", "w4afp8"):
        return compare_same_int4(source, out)
    elif isinstance(out, Scaled) and kinds == ("fp8", "fp8"):
        return compare_fp8(source, out, rules)
    result = MatrixResult(out.stored)
    result.fail("shape", "codes", f"is {kinds[1]}, which is not held against {kinds[0]}, as the source has it")
    return result


def _weights(out: Stored, job: ShardJob) -> NDArray[np.int64] | None:
    """The integer weights of a matrix, if the manifest says that there were any and they are at hand."""
    weighted = job.rules.int4 is not None and job.rules.int4.weights is not None
    return job.importance.weights(out.name, out.cols) if weighted and job.importance else None


def _book(compared: MatrixResult, result: ShardResult) -> None:
    result.counts.add(compared.counts)
    result.inexact += compared.inexact
    result.failures.extend(compared.failures)
    if compared.figures is not None:
        result.quality.note(compared.out.name, compared.figures, compared.histogram)


def _verify_recast(unit: Recast, read_source: Read, read_out: Read, job: ShardJob, result: ShardResult) -> None:
    source, out = open_plain(unit.source, read_source), load_scaled(unit.out, read_out)
    compared = compare_recast(source, out, job.rules)
    _book(compared, result)
    if job.certificate and not compared.failures:
        result.entries.append(("matrices", matrix_entry(source, unit.out, out, None, _changed(compared))))


def _check_source_shape(source: Stored, read_source: Read) -> None:
    shape = load_shape(source, read_source)
    if shape is not None and shape != (source.rows, source.cols):
        raise InputError(
            f"says {list(shape)}, but as 4-bit codes the words hold {[source.rows, source.cols]}",
            where=source.parts["shape"].tensor.where,
            fix="only 4-bit codes in groups of 128 are read",
        )


def _verify_shape(out: Stored, read_out: Read, result: ShardResult) -> None:
    shape = load_shape(out, read_out)
    if shape is not None and shape != (out.rows, out.cols):
        tensor = out.parts["shape"].tensor
        why = f"says {list(shape)}, the matrix is {[out.rows, out.cols]}"
        result.failures.add("shape", why, file=tensor.file, tensor=tensor.name, row=0, column=0)


def _same_codes(pair: Pair, read_source: Read, read_out: Read) -> bool | None:
    """Are the packed codes byte for byte equal? None where they lie too differently to compare ranges."""
    if not (pair.source.contiguous and pair.out.contiguous):
        return None
    before, after = pair.source.main.tensor, pair.out.main.tensor
    size = pair.out.rows * pair.out.cols // 2
    return same_ranges(read_source(before.file), pair.source.start, read_out(after.file), pair.out.start, size)


def _changed(compared: MatrixResult) -> int:
    lossy = compared.figures is not None and compared.figures.squared_error > 0
    return compared.counts.inexact_half_blocks + compared.counts.inexact_elements + lossy


def _verify_bias(pair: Pair, read_source: Read, read_out: Read, result: ShardResult) -> bytes | None:
    if odd_bias(pair.out):
        tensor = pair.out.parts["bias"].tensor
        why = f"is {tensor.dtype}, whose elements are no whole bytes: no bias"
        result.failures.add("shape", why, file=tensor.file, tensor=tensor.name)
        return None
    before, after = load_bias(pair.source, read_source), load_bias(pair.out, read_out)
    if before is None and after is None:
        return None
    if after is None:
        tensor = pair.source.parts["bias"].tensor
        result.failures.add("missing", f"bias of {pair.out.name} is not in the output", tensor=tensor.name)
        return None
    tensor = pair.out.parts["bias"].tensor
    if before is None:
        why = f"is a bias of {pair.out.name}, which has none in the source"
        result.failures.add("extra", why, file=tensor.file, tensor=tensor.name)
    elif pair.source.parts["bias"].tensor.dtype != tensor.dtype:
        why = f"is {tensor.dtype}, the source has {pair.source.parts['bias'].tensor.dtype}"
        result.failures.add("shape", why, file=tensor.file, tensor=tensor.name)
    elif before != after:
        width = BITS[tensor.dtype] // 8
        row = next(
            i for i in range(pair.out.rows) if before[i * width : (i + 1) * width] != after[i * width : (i + 1) * width]
        )
        why = f"bias {row} of {pair.out.name} differs from the source"
        view = pair.out.parts["bias"]
        column = view.row_start + row * view.row_step
        result.failures.add("bias", why, file=tensor.file, tensor=tensor.name, row=view.entry or 0, column=column)
    return before


def _verify_input_scale(pair: Pair, read_source: Read, read_out: Read, job: ShardJob, result: ShardResult) -> None:
    """Activation scales: 1.0 where truecast added them, or the calibrated ones; else the source's, as the output has them.

    Those of an INT4 matrix that somebody else made, and calibrated, need only be legal; so do ours without the file.
    """
    rules = job.rules
    if "input_scale" not in pair.out.parts:
        made = rules.int4 is not None and pair.out.layout != pair.source.layout
        if made and pair.out.layout == w4afp8_sglang.NAME:
            tensor = pair.out.main.tensor
            why = f"the activation scale of {pair.out.name} is not there, which this dialect is always written with"
            result.failures.add("missing", why, file=tensor.file, tensor=tensor.name)
        return  # if the source has one, it must be declared dropped: see verify
    after = load_multiplier(pair.out, "input_scale", read_out)
    before = load_multiplier(pair.source, "input_scale", read_source)
    assert after is not None
    why = ""
    calibrated = rules.int4 is None or (rules.int4.calibration is not None and pair.source.format == "mxfp4")
    wanted = (job.input_scales or {}).get(pair.out.name)
    if pair.out.format == "w4afp8" and calibrated and (before is None or rules.int4) and wanted is None:
        if not 0 < after < np.inf:
            why = f"activation scale is {after}; it must be positive and finite"
    else:
        if wanted is None:
            wanted = np.float32(1)
        if before is not None and not (calibrated and rules.int4):
            wanted = before if pair.source.divides == pair.out.divides else np.float32(1) / before
        if after.view(np.uint32) != wanted.view(np.uint32):
            why = f"activation scale is {after}, should be {wanted}"
    if why:
        tensor = pair.out.parts["input_scale"].tensor
        result.failures.add("input_scale", why, file=tensor.file, tensor=tensor.name, row=0, column=0)
