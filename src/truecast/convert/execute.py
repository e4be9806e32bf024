"""Carrying out a plan: scan, shards in parallel, small files, manifest. Resumable at any instant."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from truecast import __version__
from truecast.checkpoint.card_seal import CARD, MAX_BYTES, seal, sealed_files
from truecast.checkpoint.files import stream
from truecast.checkpoint.journal import FOLDER, MANIFEST, Journal
from truecast.checkpoint.pool import run_jobs
from truecast.checkpoint.records import encode_json
from truecast.checkpoint.source import Checkpoint, open_checkpoint, open_shards
from truecast.checkpoint.writer import FileWriter, explained, write_file
from truecast.convert.a_log_rule import CodeChange, code_changes
from truecast.convert.configs import GENERATED, small_files
from truecast.convert.device import devices
from truecast.convert.manifest import build_manifest, encode_manifest, load_manifest
from truecast.convert.parts import Cast
from truecast.convert.place import ShardPlan
from truecast.convert.plan import Plan, plan
from truecast.convert.scan import Scan, scan, scan_bytes
from truecast.convert.select import Target
from truecast.convert.shard import ShardJob, write_shard
from truecast.errors import InexactError, InputError, RefusedError
from truecast.layouts import format_of
from truecast.layouts.calibrated_on import calibrated_on

log = logging.getLogger(__name__)

Card = Callable[[Mapping[str, Any]], str]
"""Renders README.md from a manifest."""

Progress = Callable[[str, int, int], None]
"""Told ``(stage, bytes done since the last call, bytes of the whole stage)``."""

MARGIN_BYTES = 64 << 20
"""Space to leave for small files when checking whether the output fits."""


def convert(
    location: str | os.PathLike[str],
    out: str | os.PathLike[str],
    target: Target,
    *,
    jobs: int = 1,
    device: str = "cpu",
    card: Card | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Convert a checkpoint into the folder ``out`` and return its manifest.

    The same call after a kill goes on where it stopped and gives byte-identical output; after a complete run it does
    nothing. ``jobs`` processes work on one shard each; ``device`` (``cpu``, ``cuda``, or ``auto``: CUDA where there is one)
    computes INT4 codes, with the same result. Nothing is written before every scale has been read.

    Raises: UsageError for options that do not fit; InputError for a faulty source or an unsuitable ``out``;
    InexactError where the cast would lose values and ``target.allow_inexact`` is not set; RefusedError for lack of
    space, or a folder that belongs to another run.
    """
    folder = Path(out)
    source = open_checkpoint(location)
    stamps = source.stamps()
    _check_apart(source, folder)
    work = plan(source, target)
    earlier = calibrated_on(source)
    casts = [work.cast_settings(name) for name in devices(device, work.layout.FORMAT)]
    identity = {
        "source": source.fingerprint(),
        "plan": work.digest(),
        "version": __version__,
        "stamps": stamps,
        "options": work.options(),
    }
    with Journal(folder, identity) as journal:
        if (folder / MANIFEST).exists() and (finished := _complete(folder, identity)) is not None:
            log.warning("%s is complete already: nothing was written", folder)
            return finished
        started = time.monotonic()
        records = journal.finished()
        missing = [shard for shard in work.shards if shard.file not in records]
        _check_space(folder, sum(work.shard_bytes(shard) for shard in missing))
        found = scan(work, jobs, _stage(progress, "scan", scan_bytes(work)))
        refuse_inexact(work, found)
        written = _stage(progress, "write", sum(work.shard_bytes(shard) for shard in missing))
        shard_jobs = [_job(work, s, folder, found, stamps, casts[i % len(casts)]) for i, s in enumerate(missing)]
        with closing(run_jobs(write_shard, shard_jobs, jobs)) as results:
            for record, _ in results:
                records[record["file"]] = record
                written(record["bytes"])
        files = {name: {"bytes": r["bytes"], "sha256": r["sha256"]} for name, r in records.items()}
        code, notes = code_changes(source) if target.fix_code else ({}, [])
        files |= _copy_auxiliary(source, folder, code) | _write_small(work, folder)
        manifest = build_manifest(work, found, work.digest(), files, records.values(), code, notes, earlier)
        if card is not None:
            manifest["files"][CARD] = _write_card(folder, seal(card(manifest)))
        run = {"seconds": time.monotonic() - started, "jobs": jobs, "source": source.location}
        write_file(folder / FOLDER / "run.json", encode_json(run))
        write_file(folder / MANIFEST, encode_manifest(manifest))
    return load_manifest(folder / MANIFEST)


def refuse_inexact(work: Plan, found: Scan) -> None:
    """Raises: InexactError where the scan found something inexact and the target does not allow that."""
    if not found.inexact_matrices or work.target.allow_inexact:
        return
    name, count = next(iter(found.inexact_matrices.items()))
    matrix, number = work.contents.matrices[name], len(found.inexact_matrices)
    told = "listed" if work.layout.FORMAT == "nvfp4" and format_of(matrix) == "mxfp4" else "counted by matrix"
    raise InexactError(
        f"{count:,} {work.unit} cannot be exact in {work.layout.NAME}"
        + (f", in {number:,} matrices together {sum(found.inexact_matrices.values()):,}" if number > 1 else ""),
        where=matrix.where,
        fix=f"add --inexact allow to take the nearest values, which are then {told}",
    )


def _complete(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of a finished run; None if files that it lists are missing and are to be written again.

    Raises: RefusedError if it is another run's, or a file that it lists is of another size: somebody's edit is not
    overwritten.
    """
    manifest = load_manifest(folder / MANIFEST)
    said = manifest["source"]["fingerprint"], manifest["plan"], manifest["version"]
    if said != (identity["source"], identity["plan"], identity["version"]):
        raise RefusedError(
            "was converted from another source, with other options or by another version",
            where=str(folder),
            fix="convert into another folder, or remove this one and start again",
        )
    complete = True
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            complete = False
        elif name == CARD and _has_later_card(folder):
            continue
        elif path.stat().st_size != entry["bytes"]:
            raise RefusedError(
                f"the run is complete, but this file is no longer the {entry['bytes']} bytes that it wrote",
                where=str(path),
                fix="put it back, or remove it: the same command then writes it again",
            )
    return manifest if complete else None


def _job(
    work: Plan, shard: ShardPlan, folder: Path, found: Scan, stamps: Mapping[str, list[int]], target: Cast
) -> ShardJob:
    matrices = {m.name for t in shard.tensors for piece in t.pieces for m in piece}
    files = {t.source.file for t in shard.tensors if t.source is not None}
    files |= {v.tensor.file for t in shard.tensors for piece in t.pieces for m in piece for v in m.parts.values()}
    return ShardJob(
        shard=shard,
        out=folder,
        opener=work.source.opener,
        source_path=work.source.local_path,
        stamps={name: s for name, s in stamps.items() if name in files},
        m={name: found.m[name] for name in matrices if name in found.m},
        target=target,
    )


def _stage(progress: Progress | None, stage: str, total: int) -> Callable[[int], None]:
    if progress is None:
        return lambda done: None
    progress(stage, 0, total)
    return lambda done: progress(stage, done, total)


def _check_apart(source: Checkpoint, folder: Path) -> None:
    """Neither folder may lie in the other: auxiliary files would be copied in circles, or the source overwritten."""
    if source.local_path is None:
        return
    a, b = source.local_path.resolve(), folder.resolve()
    if a == b or a in b.parents or b in a.parents:
        raise InputError(
            "output and source folder lie in each other", where=str(folder), fix="choose another output folder"
        )


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed and free < needed + MARGIN_BYTES:
        raise RefusedError(
            f"{needed / 1e9:,.2f} GB are to be written, {free / 1e9:,.2f} GB are free",
            where=str(folder),
            fix="free space, or choose a folder on another disk",
        )


def _has_later_card(folder: Path) -> bool:
    """Has ``truecast card`` written the README.md since? Its hashes of records tell."""
    path = folder / CARD
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
        return False
    return bool(sealed_files(path.read_bytes()))


def _write_card(folder: Path, data: bytes) -> dict[str, Any]:
    """Write the card, but leave a later one that was made from records; the manifest records this one in any case."""
    if _has_later_card(folder):
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return _write(folder, CARD, data)


def _write(folder: Path, name: str, data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": write_file(folder / name, data)}


def _write_small(work: Plan, folder: Path) -> dict[str, dict[str, Any]]:
    written = open_shards(folder, [shard.file for shard in work.shards])
    return {name: _write(folder, name, data) for name, data in small_files(work, written).items()}


def _copy_auxiliary(source: Checkpoint, folder: Path, code: Mapping[str, CodeChange]) -> dict[str, dict[str, Any]]:
    """Copy what travels with the weights: real files, never links; the source's README under another name."""
    copied: dict[str, dict[str, Any]] = {}
    about_source = _records_of(source)
    for name in source.auxiliary:
        target = _readme_name(source.auxiliary) if name == CARD else name
        if target in GENERATED or name in about_source:
            continue
        file = source.opener(name)
        path = folder / target
        try:
            with explained(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(folder.resolve()):
                raise InputError("a link leads out of the output folder", where=str(path.parent), fix="remove the link")
            writer = FileWriter(path)
            try:
                for data in [code[name].content] if name in code else stream(file, 0, file.size):
                    writer.write(data)
                size, sha256 = writer.position, writer.commit()
            except BaseException:
                writer.abort()
                raise
        finally:
            file.close()
        copied[target] = {"bytes": size, "sha256": sha256}
    return copied


def _records_of(source: Checkpoint) -> frozenset[str]:
    """Records that the source's own card is made from: they say nothing of another checkpoint."""
    if not 0 < source.auxiliary.get(CARD, 0) <= MAX_BYTES:
        return frozenset()
    file = source.opener(CARD)
    try:
        return frozenset(sealed_files(file.read(0, file.size)) or ())
    finally:
        file.close()


def _readme_name(auxiliary: Mapping[str, int]) -> str:
    """Under which name the source's own card travels: the first that is free."""
    names = ("README.source.md", *(f"README.source.{i}.md" for i in range(2, len(auxiliary) + 3)))
    return next(name for name in names if name not in auxiliary)
