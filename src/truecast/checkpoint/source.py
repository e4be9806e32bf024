"""Opening a checkpoint: a local folder, a single safetensors file, or an fsspec URL. Headers only.

The folder is an untrusted download. What its index claims is held against what the shards' headers say, in both
directions; a ``weight_map`` entry may only name a file of the folder itself. Nothing is unpickled, nothing executed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truecast.checkpoint.files import LocalOpener, Opener, RemoteOpener, connect, explained, read_whole
from truecast.checkpoint.header import TensorInfo, read_header
from truecast.errors import InputError

INDEX_SUFFIX = ".safetensors.index.json"
SHARD_SUFFIX = ".safetensors"
CONFIG = "config.json"
MAX_INDEX_BYTES = 1 << 30
MAX_CONFIG_BYTES = 64 << 20
MAX_NESTING = 100
SAMPLED_PIECES, PIECE_BYTES = 512, 4096
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

log = logging.getLogger(__name__)

Problem = Callable[[InputError], None]
"""What to do with a fault that concerns one file: raise it, or collect it and go on."""


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint's headers and small files. ``tensors`` are in file order, files in name order."""

    location: str
    config: dict[str, Any]
    shards: dict[str, int]
    """Shard file -> size in bytes."""
    tensors: dict[str, TensorInfo]
    shard_metadata: dict[str, dict[str, str]]
    header_sha256: dict[str, str]
    auxiliary: dict[str, int]
    """Every other file to carry along (path relative to the folder -> size in bytes)."""
    index: dict[str, Any] | None
    opener: Opener = field(repr=False)
    local_path: Path | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of tensor data, headers not counted: what an index calls ``total_size``."""
        return sum(t.nbytes for t in self.tensors.values())

    def read_small(self, name: str, limit: int = MAX_CONFIG_BYTES) -> bytes:
        """A whole small file. Raises: InputError if it is larger than ``limit``."""
        return read_whole(self.opener(name), f"{self.location}/{name}", limit)

    def fingerprint(self) -> str:
        """sha256 over the names, sizes and headers of all shards and over config.json; the same after a copy."""
        digest = hashlib.sha256()
        for name in sorted(self.shards):
            digest.update(f"{name}\0{self.shards[name]}\0{self.header_sha256[name]}\n".encode())
        digest.update(json.dumps(self.config, sort_keys=True).encode())
        return digest.hexdigest()

    def weights_sha256(self) -> str:
        """sha256 over the fingerprint and a sample of the shards' bytes: tells other weights of the same shapes apart.

        Some 2 MiB in small pieces spread over all shards, whole shards where they are small; the same after a copy. An
        edit of a few tensors can miss it. Raises: InputError where a shard cannot be read.
        """
        digest = hashlib.sha256(self.fingerprint().encode())
        pieces = max(SAMPLED_PIECES // max(len(self.shards), 1), 2)
        for name in sorted(self.shards):
            file, size = self.opener(name), self.shards[name]
            try:
                if size <= pieces * PIECE_BYTES:
                    digest.update(file.read(0, size))
                    continue
                for number in range(pieces):
                    start = (size - PIECE_BYTES) * (number + 1) // pieces  # the last one ends with the file
                    digest.update(file.read(start, start + PIECE_BYTES))
            finally:
                file.close()
        return digest.hexdigest()

    def stamps(self) -> dict[str, list[int]]:
        """Size and mtime (ns) of each local shard: notices an edit that leaves the header alone. Empty if remote."""
        if self.local_path is None:
            return {}
        return {name: stamp(shard_path(self.local_path, name)) for name in self.shards}


def shard_path(local_path: Path, name: str) -> Path:
    """Where a local checkpoint keeps its file ``name``; a checkpoint that is a single file is that file."""
    return local_path / name if local_path.is_dir() else local_path


def stamp(path: Path) -> list[int]:
    """Size in bytes and mtime in ns of a file, symlinks followed."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def open_checkpoint(location: str | os.PathLike[str], problem: Problem | None = None) -> Checkpoint:
    """Open a folder, a ``.safetensors`` file or an fsspec URL, and read every shard's header.

    ``problem`` is called for a fault confined to one file or index entry; by default it raises.
    Raises: InputError if there is no checkpoint, or for any fault of header or index.
    """
    text = os.fspath(location)
    report = problem or _raise
    if "://" in text:
        return _open_remote(text, report)
    path = Path(text)
    try:
        if not path.exists():
            hub = f"for the Hub: hf://{text}, or download it first" if _REPOSITORY.fullmatch(text) else ""
            raise InputError("no such file or folder", where=text, fix=hub)
        names = sorted(e.name for e in os.scandir(path) if e.is_file() or e.is_symlink()) if path.is_dir() else []
    except OSError as error:
        raise InputError(f"cannot open: {error.strerror}", where=text) from None
    if path.is_dir():
        local = LocalOpener(path)
        return _assemble(text, path, names, local, report, _walk_auxiliary(path))
    if path.suffix != SHARD_SUFFIX:
        raise InputError("is neither a folder nor a .safetensors file", where=text)
    return _assemble(text, path, [path.name], LocalOpener(path.parent), report, {})


def open_shards(folder: Path, names: Iterable[str]) -> Checkpoint:
    """The headers of these shards of a local folder, and nothing else of it.

    Raises: InputError for a shard that is missing or malformed.
    """
    checkpoint = Checkpoint(str(folder), {}, {}, {}, {}, {}, {}, None, LocalOpener(folder), folder)
    for name in names:
        _read_shard(checkpoint, name, _raise)
    return checkpoint


def _raise(error: InputError) -> None:
    raise error


def _open_remote(url: str, report: Problem) -> Checkpoint:
    filesystem, root = connect(url)
    if root.endswith(SHARD_SUFFIX):
        folder, _, name = url.rpartition("/")
        return _assemble(url, None, [name], RemoteOpener(folder), report, {})
    with explained(url, "list"):
        listed = [e for e in filesystem.ls(root, detail=True) if e["type"] == "file"]
    names = sorted({str(e["name"]).rsplit("/", 1)[-1] for e in listed})
    opener = RemoteOpener(url.rstrip("/"))
    auxiliary = {n: opener(n).size for n in names if is_auxiliary(n)}
    return _assemble(url, None, names, opener, report, auxiliary)


_WEIGHT_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack", ".npz")
_SKIPPED_FOLDERS = {".git", ".cache", ".huggingface", ".truecast", "__pycache__"}
_OUR_FILES = {"truecast.json"}


def is_auxiliary(name: str) -> bool:
    """Does this file travel with the weights? Other weight files, pickles among them, and the index do not."""
    base = name.rsplit("/", 1)[-1]
    if base in _OUR_FILES or base == ".gitattributes" or base.endswith(".partial"):
        return False
    return not base.endswith((SHARD_SUFFIX, INDEX_SUFFIX, *_WEIGHT_SUFFIXES))


def _walk_auxiliary(folder: Path) -> dict[str, int]:
    """Files to carry along, those of linked folders included; weights that are not carried are named in a warning."""
    found: dict[str, int] = {}
    seen: set[Path] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS)
        if (real := Path(root).resolve()) in seen:
            folders.clear()  # a link back to where we have been
            continue
        seen.add(real)
        for name in files:
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            if any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in relative):
                raise InputError(f"the file name {relative!r} holds what no text can", where=str(folder))
            if not is_auxiliary(relative):
                if name.endswith(_WEIGHT_SUFFIXES) or (name.endswith(SHARD_SUFFIX) and "/" in relative):
                    log.warning("%s/%s is not carried along: it is no part of the checkpoint", folder, relative)
                continue
            try:
                status = path.stat()
            except OSError:
                raise InputError("dangling symlink", where=str(path), fix="finish the download") from None
            if stat.S_ISREG(status.st_mode):
                found[relative] = status.st_size
    return dict(sorted(found.items()))


def _assemble(
    location: str,
    local_path: Path | None,
    names: list[str],
    opener: Opener,
    report: Problem,
    auxiliary: dict[str, int],
) -> Checkpoint:
    index_name, index, weight_map = _read_index(location, names, opener)
    present = [n for n in names if n.endswith(SHARD_SUFFIX)]
    if index is None:
        if not present:
            raise InputError("holds no .safetensors file", where=location)
        if len(present) > 1:
            raise InputError(
                f"{len(present)} shards but no index", where=location, fix="download model.safetensors.index.json too"
            )
    wanted = sorted(set(weight_map.values())) if index is not None else present
    for stray in sorted(set(present) - set(wanted)):
        report(
            InputError(
                f"lies in the folder, but {index_name} does not name it",
                where=f"{location}/{stray}",
                fix="move it away",
                code="shard-stray",
            )
        )

    checkpoint = Checkpoint(location, {}, {}, {}, {}, {}, auxiliary, index, opener, local_path)
    if CONFIG in names:
        checkpoint.config = _json_object(checkpoint.read_small(CONFIG), f"{location}/{CONFIG}")
        _check_config(checkpoint.config, f"{location}/{CONFIG}")
    for name in wanted:
        if name not in present:
            report(
                InputError(
                    f"{index_name} names this shard, but it is missing",
                    where=f"{location}/{name}",
                    fix="finish the download",
                    code="shard-missing",
                )
            )
            continue
        try:
            _read_shard(checkpoint, name, report)
        except InputError as error:
            report(error)
    if index is not None:
        _compare_with_index(checkpoint, weight_map, index_name, report)
    return checkpoint


def _check_config(config: dict[str, Any], where: str) -> None:
    """Refuse keys of another type than everything here relies on, at the top and one level down."""
    for block in (config, *(v for v in config.values() if isinstance(v, dict))):
        for key, kind, name in (("quantization_config", dict, "object"), ("model_type", str, "string")):
            if not isinstance(block.get(key), (kind, type(None))):
                raise InputError(f"{key} is no JSON {name}", where=where, fix="download it again")


def _read_index(location: str, names: list[str], opener: Opener) -> tuple[str, dict[str, Any] | None, dict[str, str]]:
    found = [n for n in names if n.endswith(INDEX_SUFFIX)]
    if not found:
        return "", None, {}
    name = "model" + INDEX_SUFFIX if "model" + INDEX_SUFFIX in found else found[0]
    where = f"{location}/{name}"
    index = _json_object(read_whole(opener(name), where, MAX_INDEX_BYTES), where)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError("has no weight_map", where=where)
    for tensor, shard in weight_map.items():
        if (
            not isinstance(shard, str)
            or not shard.endswith(SHARD_SUFFIX)
            or "/" in shard
            or "\\" in shard
            or "\0" in shard
        ):
            raise InputError(
                f"weight_map sends {tensor} to {shard!r}, which is no shard of this folder",
                where=where,
                fix="do not trust this checkpoint",
            )
    return name, index, weight_map


def _read_shard(checkpoint: Checkpoint, name: str, report: Problem) -> None:
    where = f"{checkpoint.location}/{name}"
    file = checkpoint.opener(name)
    try:
        digest = hashlib.sha256()

        def read(start: int, end: int) -> bytes:
            data = bytes(file.read(start, end))
            digest.update(data)
            return data

        try:
            tensors, metadata = read_header(read, name, file.size)
        except InputError as error:
            place = error.where.replace(name, where)
            raise InputError(error.problem, where=place, fix=error.fix, code=error.code) from None
        size = file.size
    finally:
        file.close()
    for tensor in [t for t in tensors if t in checkpoint.tensors]:
        other = checkpoint.tensors[tensor].file
        report(
            InputError(
                f"stands in {other} too",
                where=f"{tensor} in {where}",
                fix="remove the stale shard",
                code="tensor-duplicate",
            )
        )
    checkpoint.tensors.update(tensors)
    checkpoint.shards[name], checkpoint.shard_metadata[name] = size, metadata
    checkpoint.header_sha256[name] = digest.hexdigest()


def _compare_with_index(checkpoint: Checkpoint, weight_map: dict[str, str], index_name: str, report: Problem) -> None:
    where = f"{checkpoint.location}/{index_name}"
    for name, shard in weight_map.items():
        tensor = checkpoint.tensors.get(name)
        if shard not in checkpoint.shards:
            continue  # reported already: the shard itself is missing or broken
        if tensor is None:
            report(
                InputError(
                    f"names {name} in {shard}, whose header does not have it",
                    where=where,
                    fix="download both again",
                    code="index-names-absent-tensor",
                    tensor=name,
                )
            )
        elif tensor.file != shard:
            report(
                InputError(
                    f"names {name} in {shard}, but it lies in {tensor.file}",
                    where=where,
                    fix="download both again",
                    code="index-wrong-shard",
                    tensor=name,
                )
            )
    for tensor in checkpoint.tensors.values():
        if tensor.name not in weight_map:
            report(
                InputError(
                    "its shard has it, the index does not",
                    where=f"{tensor.name} in {checkpoint.location}/{tensor.file}",
                    fix=f"download {index_name} again",
                    code="index-lacks-tensor",
                )
            )


def _json_object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no valid JSON: {error}", where=where) from None
    if not isinstance(document, dict):
        raise InputError("is no JSON object", where=where)
    if _depth(document) > MAX_NESTING:
        raise InputError(f"is nested more than {MAX_NESTING} deep", where=where, fix="do not trust this checkpoint")
    if not _encodable(raw, document):
        raise InputError("holds half a surrogate pair", where=where, fix="do not trust this checkpoint")
    return document


def _depth(document: Any) -> int:
    depth, level = 0, [document]
    while level:
        depth += 1
        level = [v for x in level if isinstance(x, dict | list) for v in (x.values() if isinstance(x, dict) else x)]
    return depth


def _encodable(raw: bytes, document: dict[str, Any]) -> bool:
    """Can every string of it be written again? Only an escape can hold what UTF-8 cannot."""
    if b"\\ud" not in raw.lower():
        return True
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
