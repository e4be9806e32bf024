"""The files that a card is made from: found, read, named, and bound to the options by which they were given."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truecast.checkpoint.card_seal import RECORDS
from truecast.checkpoint.files import LocalFile
from truecast.checkpoint.journal import MANIFEST
from truecast.checkpoint.source import SHARD_SUFFIX, open_checkpoint
from truecast.cli.recorded import read_with_bytes
from truecast.errors import InputError, UsageError
from truecast.report.card import Record
from truecast.report.card.record import THIS
from truecast.verify.manifest import read_manifest as parse_manifest
from truecast.verify.report import Failures

_LABEL = re.compile(r"[^\W_](?:[\w.+-]| (?=[^ ])){0,39}")
_PLACE = re.compile(r"(^|[\s=\"'])(/[^/\s]+/|~/|[A-Za-z]:\\|https?://)")
"""A path of a machine, or an address."""


@dataclass(frozen=True, slots=True)
class Given:
    """A record and the bytes of its file."""

    record: Record
    data: bytes


def read_manifest(path: Path) -> Given:
    """The manifest, whole. Raises: InputError."""
    if not path.exists():
        fix = "OUT is the folder that `truecast convert` wrote; or give --manifest FILE"
        raise InputError("no such file", where=str(path), fix=fix)
    document, _, data = _read(path)
    failures = Failures()
    with LocalFile(path) as file:
        parse_manifest(file, failures)
    if failures.total:
        raise InputError(
            failures.kept[0].message, where=str(path), fix="give the truecast.json that `truecast convert` wrote"
        )
    return Given(Record("manifest", MANIFEST, str(path), document, hashlib.sha256(data).hexdigest()), data)


def read_records(args: argparse.Namespace) -> list[Given]:
    """Every record named on the command line, each of the schema that its option takes. Raises: InputError, UsageError."""
    single = (("verify", args.verify), ("launch", args.launch))
    asked = [(kind, "", path) for kind, path in single if path is not None]
    for kind in ("audit", "bench", "eval", "compare"):
        asked += [(kind, *_labelled(text, kind)) for text in getattr(args, kind)]
    found: list[Given] = []
    names: set[str] = set()
    for kind, label, path in asked:
        if not path.exists():
            fix = f"--{kind} takes truecast.{kind}/1, the result of `truecast {kind}`"
            raise InputError("no such file", where=str(path), fix=fix)
        document, file, data = _read(path)
        if document.get("schema") != f"truecast.{kind}/1" or "error" in document:
            raise InputError(
                f"schema is {document.get('schema')!r:.60}" if "error" not in document else "records an error",
                where=str(file),
                fix=f"--{kind} takes truecast.{kind}/1, the result of `truecast {kind}`",
            )
        name = _name(kind, label, names)
        names.add(name.lower())
        found.append(Given(Record(kind, name, str(file), document, hashlib.sha256(data).hexdigest(), label), data))
    return found


def identity_of(out: Path) -> dict[str, str] | None:
    """Fingerprint and sampled hash of the checkpoint; None where the folder holds no shards (a card may do without)."""
    if not any(out.glob(f"*{SHARD_SUFFIX}")):
        return None
    checkpoint = open_checkpoint(out)
    return {"fingerprint": checkpoint.fingerprint(), "weights": checkpoint.weights_sha256()}


def local_places(document: Any, at: str = "") -> Iterator[str]:
    """Pointers to texts that name a path of a machine or an address."""
    if isinstance(document, str):
        if _PLACE.search(document):
            yield at
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from local_places(value, f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}")
    elif isinstance(document, list):
        for i, value in enumerate(document):
            yield from local_places(value, f"{at}/{i}")


def _read(path: Path) -> tuple[Mapping[str, Any], Path, bytes]:
    return read_with_bytes(path)


def _labelled(text: str, kind: str) -> tuple[str, Path]:
    label, equals, path = text.partition("=")
    if not equals or kind == "compare" or Path(text).exists():
        return "", Path(text)
    if not _LABEL.fullmatch(label) or _slug(label).isdigit() or label.casefold() == THIS:
        raise UsageError(
            f"{label!r:.60} is no label",
            where=f"--{kind}",
            fix="LABEL is up to 40 letters, digits and spaces, not digits alone",
        )
    return label, Path(path)


def _name(kind: str, label: str, taken: set[str]) -> str:
    """``records/eval.native.json``; further ones of the same kind and label have a number."""
    slug = _slug(label)
    if label and not slug:
        raise UsageError(f"{label!r} holds nothing for a file's name", where=f"--{kind}", fix="give a label in ASCII")
    stem = f"{RECORDS}/{kind}" + (f".{slug}" if slug else "")
    number = 1
    while (name := f"{stem}.json" if number == 1 else f"{stem}.{number}.json").lower() in taken:
        number += 1
    return name


def _slug(label: str) -> str:
    """A label as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", label).strip("-")
