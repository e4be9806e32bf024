"""The proof: read both checkpoints from disk, and compare everything."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from truecast.checkpoint.journal import MANIFEST
from truecast.checkpoint.pool import run_jobs
from truecast.checkpoint.source import Checkpoint, open_checkpoint
from truecast.errors import InputError, RefusedError, UsageError
from truecast.families import find_family
from truecast.layouts.calibration import MOMENT, Calibration
from truecast.layouts.recognise import Contents, recognise
from truecast.verify import compare_fp8, compare_int4
from truecast.verify.calibration import open_declared, wanted_scales
from truecast.verify.certificate import CERTIFICATE, Entries, is_certificate, write_certificate
from truecast.verify.code import check_code
from truecast.verify.importance import Importance, open_importance
from truecast.verify.lossy import check_importance, check_lossy_claims, is_int4_cast, note_lossy, unchecked_scales
from truecast.verify.manifest import Manifest, read_manifest
from truecast.verify.pairing import Copy, Pair, Pairing, Recast, Unit, pair_up
from truecast.verify.report import Failures, Report
from truecast.verify.rules import Rules
from truecast.verify.shard import ShardJob, ShardResult, verify_shard
from truecast.verify.tree import check_files, open_optional, open_suspect
from truecast.verify.twins import check_need, check_twins, group_twins, watched

Progress = Callable[[str, int, int], None]
"""Told ``(stage, bytes done since the last call, bytes of the whole stage)``."""


def verify(
    src: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    jobs: int = 1,
    certificate: Path | None = None,
    weights: Path | None = None,
    calibration: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Prove that ``out`` holds exactly what ``src`` holds, or say where not.

    Where a format loses (INT4 of MXFP4, FP8 of BF16) the loss is judged instead: is it as the manifest says, is it the
    least, and how large is it (``Report.quality``). ``weights`` is the file that INT4 scales were chosen by,
    ``calibration`` the one that activation scales were taken from, should the manifest say that there was one.

    Every tensor of both sides is accounted for, and every element of every matrix compared as integers. Where ``out``
    has a manifest, every byte is held against its hashes as well. ``jobs`` processes work on one output file each;
    each file is read once. ``certificate`` is written if the proof holds.

    Raises: InputError for a faulty source, or if there is nothing at ``out``: a faulty output is a failure instead.
    UsageError or RefusedError for a certificate that would overwrite a part of either side, or another's file.
    """
    _check_certificate_path(src, out, certificate)
    source = open_checkpoint(src)
    contents = recognise(source.tensors)
    report = Report()
    failures = report.failures
    target = open_suspect(out, failures)
    unreadable = failures.total > 0
    manifest = _manifest(source, target, report)
    if manifest is None and _made_from(source, target):
        report.notes.append(f"{os.fspath(src)} says that it was made from {os.fspath(out)}: are the two swapped?")
    _check_unlisted(target, manifest, certificate)
    report.source, report.out = source.fingerprint(), target.fingerprint()
    report.manifest = manifest.sha256 if manifest is not None else None
    ours = report.declared = manifest is not None and manifest.fingerprint == report.source
    rules = manifest.rules if manifest and ours else Rules()
    calibrated, importance = (None, None) if calibration is None else open_declared(calibration, rules)
    if weights is not None and importance is None:
        importance = open_importance(weights, MOMENT if rules.int4 and rules.int4.diagonal else "")
    check_importance(rules, importance)
    dropped = manifest.dropped if manifest and ours else {}
    found = recognise(target.tensors, lambda error: _note_fault(error, failures))
    pairing = pair_up(contents, target.tensors, found, unreadable, failures)
    _check_dropped(contents, dropped, failures)
    _check_input_scales(pairing, dropped, failures)
    report.counts.source_tensors, report.counts.out_tensors = len(source.tensors), len(target.tensors)

    family = find_family(source.config, source.tensors)
    groups = group_twins(family, pairing.pairs) if rules.inexact else []
    rules = replace(rules, watched=watched(groups, rules.inexact))
    results = _run(source, target, pairing, rules, jobs, certificate is not None, importance, calibrated, progress)
    for result in results:
        report.counts.add(result.counts)
        report.inexact += result.inexact
        report.quality.add(result.quality)
        failures.extend(result.failures.kept, result.failures.total)
    scales = {name: scale for r in results for name, scale in r.globals.items()}
    check_need(groups, rules.inexact, scales, {name for r in results for name in r.deciding}, failures)
    report.notes += check_twins(family, pairing.pairs, scales, rules.canonical, failures)
    if manifest is not None:
        report.counts.bytes_read += check_files(target, manifest, {r.file: r.sha256 for r in results}, failures)
        if ours:
            report.counts.bytes_read += check_code(source, target, manifest.files, manifest.code, failures)
            _check_claims(manifest, pairing, report)
            check_lossy_claims(manifest, pairing, failures)
    report.notes += note_lossy(rules, pairing, importance, calibrated)
    report.scales_unchecked = unchecked_scales(rules, pairing, importance)
    if certificate is not None and report.ok:
        entries: Entries = [entry for r in results for entry in r.entries]
        write_certificate(certificate, report.source, report.counts, entries)
    elif certificate is not None:
        report.notes.append("no certificate written: the proof does not hold")
    return report


def _check_certificate_path(src: str | os.PathLike[str], out: str | os.PathLike[str], certificate: Path | None) -> None:
    if certificate is None:
        return
    path = certificate.resolve()
    if "://" not in os.fspath(out):
        folder = Path(out).resolve()
        if folder in (path, *path.parents) and path != folder / CERTIFICATE:
            raise UsageError(
                "a certificate inside the output would be a file that its manifest does not list",
                where=str(certificate),
                fix=f"write it elsewhere, or as {folder / CERTIFICATE}",
            )
    if "://" not in os.fspath(src) and Path(src).resolve() in (path, *path.parents):
        raise UsageError("a certificate is not written into the source", where=str(certificate), fix="write elsewhere")
    if os.path.lexists(path) and not is_certificate(path):
        raise RefusedError(
            "is there already, and no truecast certificate", where=str(certificate), fix="name another file"
        )


def _check_unlisted(target: Checkpoint, manifest: Manifest | None, certificate: Path | None) -> None:
    """A file that came along from the source under the certificate's name is not overwritten."""
    folder = target.local_path
    if certificate is None or folder is None or manifest is None or CERTIFICATE not in manifest.files:
        return
    if certificate.resolve() == folder.resolve() / CERTIFICATE:
        raise UsageError(
            "the manifest lists this file as part of the checkpoint", where=str(certificate), fix="write elsewhere"
        )


def _manifest(source: Checkpoint, target: Checkpoint, report: Report) -> Manifest | None:
    file = open_optional(target, MANIFEST)
    if file is None and target.local_path is not None and os.path.lexists(target.local_path / MANIFEST):
        report.failures.add("manifest", "is there, but no regular file that can be read", file=MANIFEST)
        return None
    if file is None:
        report.notes.append(f"there is no {MANIFEST}: values are compared, files are not held against recorded hashes")
        return None
    try:
        manifest = read_manifest(file, report.failures)
    finally:
        file.close()
    report.manifest_checked = True
    if manifest is not None and manifest.fingerprint != source.fingerprint():
        report.notes.append(
            f"the manifest speaks of another source (fingerprint {manifest.fingerprint}): its hashes are checked, and"
            " values against this source, as if it declared nothing"
        )
    return manifest


def _made_from(source: Checkpoint, target: Checkpoint) -> bool:
    """Does the source have a manifest that speaks of the target as its own source?"""
    file = open_optional(source, MANIFEST)
    if file is None:
        return False
    try:
        manifest = read_manifest(file, Failures())
    finally:
        file.close()
    return manifest is not None and manifest.fingerprint == target.fingerprint()


def _note_fault(error: InputError, failures: Failures) -> None:
    tensor, _, file = error.where.rpartition(" in ")
    failures.add("shape", error.problem, file=file, tensor=tensor)


def _check_dropped(contents: Contents, dropped: Mapping[str, str], failures: Failures) -> None:
    """A weight-only target loses activation scales of matrices; nothing else may be declared dropped."""
    scales = {m.input_scale.tensor.name for m in contents.matrices.values() if m.input_scale is not None}
    for name in sorted(dropped.keys() - scales):
        failures.add("manifest", "declares a tensor dropped that is no activation scale", file=MANIFEST, tensor=name)


def _check_input_scales(pairing: Pairing, dropped: dict[str, str], failures: Failures) -> None:
    """An activation scale of the source that the output lacks must be declared dropped."""
    for pair in pairing.pairs:
        view = pair.source.parts.get("input_scale")
        if view is not None and "input_scale" not in pair.out.parts and view.tensor.name not in dropped:
            why = "activation scale is neither in the output nor declared dropped"
            failures.add("missing", why, tensor=view.tensor.name)


def _run(
    source: Checkpoint,
    target: Checkpoint,
    pairing: Pairing,
    rules: Rules,
    jobs: int,
    certificate: bool,
    importance: Importance | None,
    calibration: Calibration | None,
    progress: Progress | None,
) -> list[ShardResult]:
    units: dict[str, list[Unit]] = defaultdict(list)
    for copy in pairing.copies:
        units[copy.out.file].append(copy)
    matrices: list[Pair | Recast] = [*pairing.pairs, *pairing.recasts]
    for unit in matrices:
        units[unit.out.main.tensor.file].append(unit)
    if jobs > 1 and any(is_int4_cast(pair) for pair in pairing.pairs):
        compare_int4.prepare()
    if jobs > 1 and pairing.recasts:
        compare_fp8.prepare()

    work = []
    for file in target.shards:
        names = _names(units[file])
        own = importance.of(names) if importance else None
        scales = None
        if calibration is not None and rules.int4 is not None and rules.int4.calibration is not None:
            scales = wanted_scales(
                calibration, [u.out.name for u in units[file] if isinstance(u, Pair) and is_int4_cast(u)]
            )
        work.append(
            ShardJob(file, units[file], source.opener, target.opener, rules.of(names), certificate, own, scales)
        )
    total = sum(target.shards.values())
    if progress:
        progress("verify", 0, total)
    results = {}
    for result, job in run_jobs(verify_shard, work, jobs):
        results[job.file] = result
        if progress:
            progress("verify", target.shards[job.file], total)
    return [results[file] for file in target.shards]


def _names(units: Sequence[Unit]) -> set[str]:
    return {u.out.name for u in units if not isinstance(u, Copy)}


def _check_claims(manifest: Manifest, pairing: Pairing, report: Report) -> None:
    """What the manifest counts must be what was counted here."""
    failures = report.failures
    compared = {p.out.name for p in pairing.pairs}
    for pair in pairing.pairs:
        if pair.out.layout != pair.source.layout and pair.out.format != manifest.target_format:
            why = f"says that the target is {manifest.target_format!r}, and {pair.out.name} became {pair.out.format}"
            failures.add("manifest", why, file=MANIFEST)
            break
    for name in sorted(manifest.inexact.keys() - compared):
        failures.add("manifest", f"lists inexact half blocks of {name}, which is no matrix here", file=MANIFEST)
    if (
        report.ok
        and manifest.target_format == "nvfp4"
        and manifest.renormalised != report.counts.renormalised_half_blocks
    ):
        why = f"counts {manifest.renormalised} re-expressed half blocks, {report.counts.renormalised_half_blocks} are"
        failures.add("manifest", why, file=MANIFEST)
