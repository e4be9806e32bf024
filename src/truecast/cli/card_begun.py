"""What a card that is being written calls its own: ``OUT/.truecast/card.json``, there only while one is, or was killed.

A kill may leave records of the card before, of the new one, or of both. Their hashes stand here before the first of them
is touched, so the next card takes them for truecast's and not for somebody's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from truecast.checkpoint.card_seal import RECORD_NAME
from truecast.checkpoint.journal import FOLDER, MANIFEST
from truecast.checkpoint.records import load_sealed, write_sealed
from truecast.errors import RefusedError

_FILE = "card.json"


def begin(out: Path, ours: Sequence[Mapping[str, str]]) -> None:
    """Note the records (name -> sha256) of the new card and of those before; durable when this returns."""
    known = [dict(files) for files in ours if files]
    write_sealed(out / FOLDER / _FILE, {"records": [files for i, files in enumerate(known) if files not in known[:i]]})


def begun(out: Path) -> list[dict[str, str]]:
    """What a card that was killed had noted; empty where none was, or where that is damaged."""
    path = out / FOLDER / _FILE
    if path.is_symlink() or not path.is_file():
        return []
    try:
        noted = load_sealed(path).get("records")
    except RefusedError:
        return []
    return [
        {
            name: sha
            for name, sha in files.items()
            if isinstance(sha, str) and RECORD_NAME.fullmatch(name) and name != MANIFEST
        }
        for files in (noted if isinstance(noted, list) else [])
        if isinstance(files, dict)
    ]


def done(out: Path) -> None:
    """The card stands."""
    (out / FOLDER / _FILE).unlink(missing_ok=True)
