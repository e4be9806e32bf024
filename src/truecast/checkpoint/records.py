"""Small JSON files by which a run tells the next one how far it got: written whole, and not believed once edited."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from truecast.checkpoint.writer import write_file
from truecast.errors import RefusedError


def encode_json(document: dict[str, Any]) -> bytes:
    """JSON as records are written."""
    return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"


def load_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises: RefusedError where it holds none."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise damaged(path) from None
    if not isinstance(document, dict):
        raise damaged(path)
    return document


def write_sealed(path: Path, record: dict[str, Any]) -> None:
    """Write a record with its hash in ``check``; durable when this returns."""
    write_file(path, encode_json({**record, "check": _hash(record)}))


def load_sealed(path: Path) -> dict[str, Any]:
    """A record as it was given to :func:`write_sealed`. Raises: RefusedError for an edited or cut one."""
    record = load_object(path)
    if record.pop("check", None) != _hash(record):
        raise damaged(path)
    return record


def damaged(path: Path) -> RefusedError:
    """The error for a record that is not as it was written."""
    return RefusedError("is damaged", where=str(path), fix="remove the output folder and start again")


def _hash(record: dict[str, Any]) -> str:
    return hashlib.sha256(encode_json(record)).hexdigest()
