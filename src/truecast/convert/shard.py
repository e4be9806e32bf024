"""Writing one output shard: the work of one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truecast.checkpoint.files import ByteFile, LocalFile, Opener, opened, stream
from truecast.checkpoint.journal import write_record
from truecast.checkpoint.source import shard_path, stamp
from truecast.checkpoint.writer import FileWriter
from truecast.convert.parts import Cast
from truecast.convert.place import ShardPlan
from truecast.convert.produce import Producer
from truecast.errors import RefusedError


@dataclass(frozen=True, slots=True)
class ShardJob:
    """All that a worker needs to write one shard."""

    shard: ShardPlan
    out: Path
    opener: Opener
    source_path: Path | None
    stamps: Mapping[str, list[int]]
    """Size and mtime of the source files that it reads, as they were when the run began."""
    m: Mapping[str, int]
    target: Cast


def write_shard(job: ShardJob) -> dict[str, Any]:
    """Write the shard and its journal record, which is returned.

    Raises: InputError or RefusedError with the place; the partial file is removed then.
    """
    writer = FileWriter(job.out / job.shard.file)
    try:
        tally = _write_tensors(job, writer)
        _check_source_unchanged(job)
        record: dict[str, Any] = {"file": job.shard.file, "bytes": writer.position, **tally}

        def note(sha256: str) -> None:
            record["sha256"] = sha256
            write_record(job.out, job.shard.file, record)

        writer.commit(before_rename=note)
    except BaseException:
        writer.abort()
        raise
    return record


def _write_tensors(job: ShardJob, writer: FileWriter) -> dict[str, Any]:
    with opened(job.opener) as read:
        producer = Producer(read, job.m, job.target)
        if job.shard.verbatim:
            _copy_whole(read(job.shard.verbatim), writer)
        else:
            writer.write(job.shard.header)
            for tensor in job.shard.tensors:
                for data in producer.tensor(tensor):
                    writer.write(data)
            assert writer.position == len(job.shard.header) + job.shard.data_bytes, job.shard.file
    tally = producer.tally
    return {
        "half_blocks": tally.half_blocks,
        "renormalised": tally.renormalised,
        "subnormal_scales": tally.subnormal_scales,
        "subnormal_live": tally.subnormal_live,
        "inexact": tally.inexact,
        "int4": tally.int4,
        "fp8": tally.fp8,
    }


def _copy_whole(file: ByteFile, writer: FileWriter) -> None:
    if isinstance(file, LocalFile):
        writer.copy_from(file.fd, file.size)
        return
    for data in stream(file, 0, file.size):
        writer.write(data)


def _check_source_unchanged(job: ShardJob) -> None:
    if job.source_path is None:
        return
    for name, before in job.stamps.items():
        path = shard_path(job.source_path, name)
        if not path.exists() or stamp(path) != before:
            raise RefusedError("changed while it was read", where=str(path), fix="convert from a source at rest")
