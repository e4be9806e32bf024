"""The documents that verbs leave behind, read again: JSON that nobody vouches for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from truecast.errors import InputError

NAMES = ("eval.json", "bench.json", "audit.json")
"""What a verb's ``--out`` folder holds."""

LARGEST = 1 << 30
"""Bytes; a longer file is none of ours."""


def read_recorded(path: Path) -> tuple[dict[str, Any], Path]:
    """The JSON object of a file, or of the one recorded document in a folder, and the file. Raises: InputError."""
    document, file, _ = read_with_bytes(path)
    return document, file


def read_with_bytes(path: Path) -> tuple[dict[str, Any], Path, bytes]:
    """The same with the file's bytes, of which the object was read. Raises: InputError."""
    file = _in_folder(path) if path.is_dir() else path
    try:
        if not file.is_file():
            raise InputError("no such file", where=str(file), fix=f"name a file or folder with {' or '.join(NAMES)}")
        if file.stat().st_size > LARGEST:
            raise InputError("is larger than any recorded document", where=str(file))
        data = file.read_bytes()
        document = json.loads(data.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_without_doubles)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"is no JSON that can be read: {error}", where=str(file)) from None
    if not isinstance(document, dict):
        raise InputError("is no JSON object", where=str(file))
    return document, file, data


def _in_folder(folder: Path) -> Path:
    found = [folder / name for name in NAMES if (folder / name).is_file()]
    if not found:  # `truecast eval --out` has a folder a task
        found = sorted(folder.glob(f"*/{NAMES[0]}"))
    if len(found) != 1:
        several = f"holds {' and '.join(str(f.relative_to(folder)) for f in found)}"
        held = several if found else f"holds no {', '.join(NAMES)}"
        raise InputError(held, where=str(folder), fix="name the file")
    return found[0]


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Two readers may take different ones of two entries of one name."""
    found = dict(pairs)
    if len(found) != len(pairs):
        most = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{most[0][0]!r:.80} stands twice in an object")
    return found
