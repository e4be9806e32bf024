"""The documents that verbs leave behind, read again: JSON that nobody vouches for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from truecast.errors import InputError

NAMES = ("eval.json", "bench.json", "audit.json")
"""What a verb's ``--out`` folder holds."""

LARGEST = 1 << 30
"""Bytes; a longer file is none of ours."""


def read_recorded(path: Path) -> tuple[dict[str, Any], Path]:
    """The JSON object of a file, or of the one recorded document in a folder, and the file. Raises: InputError."""
    file = _in_folder(path) if path.is_dir() else path
    try:
        if not file.is_file():
            raise InputError("no such file", where=str(file), fix=f"name a file or folder with {' or '.join(NAMES)}")
        if file.stat().st_size > LARGEST:
            raise InputError("is larger than any recorded document", where=str(file))
        document = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"is no JSON that can be read: {error}", where=str(file)) from None
    if not isinstance(document, dict):
        raise InputError("is no JSON object", where=str(file))
    return document, file


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
