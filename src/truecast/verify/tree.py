"""The output as a tree of files: can it be opened, is every file the recorded one, is none too many?"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from truecast.checkpoint.card_seal import CARD, MAX_BYTES, sealed_files
from truecast.checkpoint.files import ByteFile, LocalOpener
from truecast.checkpoint.header import encode_header
from truecast.checkpoint.index import INDEX_FILE
from truecast.checkpoint.journal import MANIFEST
from truecast.checkpoint.source import SHARD_SUFFIX, Checkpoint, open_checkpoint, open_shards
from truecast.errors import InputError
from truecast.verify.certificate import CERTIFICATE
from truecast.verify.manifest import Manifest
from truecast.verify.reader import CHUNK_BYTES
from truecast.verify.report import Failures

_METADATA = {"format": "pt"}
_NOT_CONTENT = {".truecast", ".git", ".cache"}
_UNRECORDED = {MANIFEST, CERTIFICATE, ".gitattributes"}


def open_suspect(location: str | os.PathLike[str], failures: Failures) -> Checkpoint:
    """Open a checkpoint that may be damaged: every fault becomes a failure, and what can be read is returned.

    Raises: InputError if there is nothing at ``location``.
    """
    text = os.fspath(location)
    local = "://" not in text
    if local and not Path(text).exists():
        raise InputError("no such file or folder", where=text)
    before = failures.total
    try:
        checkpoint = open_checkpoint(text, lambda error: _note(error, text, failures))
    except InputError as error:
        if not local and not error.where.endswith(".json"):
            raise
        _note(error, text, failures)
        return _shards_alone(Path(text), failures) if local and Path(text).is_dir() else _nothing(text)
    _check_total_size(checkpoint, failures, before)
    return checkpoint


def _note(error: InputError, location: str, failures: Failures) -> None:
    tensor, _, file = error.where.rpartition(" in ")
    file = file.removeprefix(location).lstrip("/")
    kind = "index" if file.endswith(".index.json") else "file" if file.endswith(".json") else "header"
    failures.add(kind, error.problem, file=file, tensor=tensor)


def _shards_alone(folder: Path, failures: Failures) -> Checkpoint:
    """Every shard of a folder whose index or config cannot be read."""
    checkpoint = _nothing(str(folder))
    checkpoint.local_path, checkpoint.opener = folder, LocalOpener(folder)
    for name in sorted(p.name for p in folder.glob(f"*{SHARD_SUFFIX}")):
        try:
            shard = open_shards(folder, [name])
        except InputError as error:
            _note(error, str(folder), failures)
            continue
        checkpoint.tensors.update(shard.tensors)
        checkpoint.shards.update(shard.shards)
        checkpoint.shard_metadata.update(shard.shard_metadata)
        checkpoint.header_sha256.update(shard.header_sha256)
    return checkpoint


def _nothing(location: str) -> Checkpoint:
    return Checkpoint(location, {}, {}, {}, {}, {}, {}, None, LocalOpener(Path(location)))


def _check_total_size(checkpoint: Checkpoint, failures: Failures, before: int) -> None:
    metadata = (checkpoint.index or {}).get("metadata")
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    if said is not None and said != checkpoint.total_bytes and failures.total == before:
        why = f"total_size is {said!r}, the tensors take {checkpoint.total_bytes} bytes"
        failures.add("index", why, file=INDEX_FILE)


def open_optional(checkpoint: Checkpoint, name: str) -> ByteFile | None:
    """A file of the checkpoint, None if it is not there."""
    if checkpoint.local_path is not None and not (checkpoint.local_path / name).exists():
        return None
    try:
        return checkpoint.opener(name)
    except InputError:
        return None


def check_files(out: Checkpoint, manifest: Manifest, hashed: dict[str, str], failures: Failures) -> int:
    """Compare every file with what the manifest records. ``hashed``: sha256 of files already read.

    A README.md that ``truecast card`` wrote since is held against its own seal, and its records against the hashes in it.
    Returns the number of bytes read.
    """
    read = 0
    damaged = {f.file for f in failures.kept}
    card = _later_card(out, manifest, failures)
    recorded: dict[str, tuple[int | None, str]] = {**manifest.files}
    if card is not None:
        recorded = {**{n: f for n, f in recorded.items() if n != CARD}, **{n: (None, sha) for n, sha in card.items()}}
    for name, (size, sha256) in recorded.items():
        file = open_optional(out, name)
        if file is None:
            by = "card" if size is None else "manifest"
            failures.add("missing", f"the {by} lists this file, but it is not there", file=name)
            continue
        try:
            if size is not None and file.size != size:
                failures.add("file", f"has {file.size} bytes, the manifest records {size}", file=name)
                continue
            if name not in hashed:
                hashed[name] = _sha256(file)
                read += file.size
        finally:
            file.close()
        if hashed[name] != sha256:
            where = "" if name in damaged or name not in out.shards else _region(out, name)
            by = "card" if size is None else "manifest"
            failures.add("hash", f"its bytes are not those that the {by} records{where}", file=name)
    for name in sorted(set(_present(out)) - set(recorded) - _UNRECORDED - ({CARD} if card is not None else set())):
        failures.add("extra", "is in the output folder, but the manifest does not list it", file=name)
    return read


def _later_card(out: Checkpoint, manifest: Manifest, failures: Failures) -> dict[str, str] | None:
    """The records that a README.md of ``truecast card`` lists, with their sha256; None where it is none of those."""
    file = open_optional(out, CARD)
    if file is None:
        return None
    try:
        data = file.read(0, file.size) if file.size <= MAX_BYTES else b""
    finally:
        file.close()
    listed = sealed_files(data)
    if not listed or hashlib.sha256(data).hexdigest() == manifest.files.get(CARD, (0, ""))[1]:
        return None
    if listed.pop(MANIFEST, None) != manifest.sha256:
        failures.add("hash", f"is the card of another {MANIFEST}", file=CARD)
    return listed


def _sha256(file: ByteFile) -> str:
    digest = hashlib.sha256()
    for position in range(0, file.size, CHUNK_BYTES):
        digest.update(file.read(position, min(position + CHUNK_BYTES, file.size)))
    return digest.hexdigest()


def _region(out: Checkpoint, name: str) -> str:
    """Where in a shard without a differing value the changed bytes lie: in its header, or nowhere that we know."""
    tensors = sorted((t for t in out.tensors.values() if t.file == name), key=lambda t: (t.start, t.end))
    wanted = encode_header(((t.name, t.dtype, t.shape) for t in tensors), _METADATA)
    file = out.opener(name)
    try:
        have = file.read(0, tensors[0].start if tensors else file.size)
    finally:
        file.close()
    if have == wanted:
        return "; its header is as it should be, and no value contradicts the source"
    at = next((i for i, (a, b) in enumerate(zip(have, wanted, strict=False)) if a != b), min(len(have), len(wanted)))
    return f"; no value contradicts the source, but its header is not the one that belongs to them (byte {at})"


def _present(out: Checkpoint) -> Iterable[str]:
    """Every file of the output, relative to it; without truecast's own notes and version control."""
    folder = out.local_path
    if folder is None:
        return [*out.shards, *out.auxiliary, *([INDEX_FILE] if out.index is not None else [])]
    found = []
    for root, folders, files in os.walk(folder):
        if Path(root) == folder:
            folders[:] = [f for f in folders if f not in _NOT_CONTENT]
        links = [f for f in folders if Path(root, f).is_symlink()]  # not walked into
        found += [Path(root, f).relative_to(folder).as_posix() for f in (*files, *links)]
    return found
