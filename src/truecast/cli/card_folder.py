"""The folder that a card is written into: nothing in it that is not ours is overwritten, and no link is followed."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from truecast.checkpoint.card_seal import CARD, MAX_BYTES, RECORDS, seal, sealed_files
from truecast.checkpoint.journal import MANIFEST
from truecast.checkpoint.writer import write_file
from truecast.cli.card_records import Given
from truecast.errors import InputError, RefusedError


class CardFolder:
    """OUT as it is before the card is written.

    Raises: InputError where OUT is no folder, or holds another checkpoint than the manifest's; RefusedError where its
    README.md or a record is not truecast's.
    """

    def __init__(self, folder: Path, manifest: Given, given: Sequence[Given]) -> None:
        if not folder.is_dir():
            raise InputError("is no folder", where=str(folder), fix="name the folder that `truecast convert` wrote")
        self.folder, self.manifest, self.given = folder, manifest, given
        self._new = {item.record.file: item.record.sha256 for item in given}
        files = manifest.record.object("files")
        _check_sizes(folder, files)
        self._earlier = self._our_card(files)
        self._check_records()

    def write(self, markdown: str) -> list[str]:
        """Write records, then the card, then remove records of the card before. Returns the paths written."""
        written = []
        for item in self.given:
            path = self.folder / item.record.file
            if path.is_symlink() or not path.exists() or path.read_bytes() != item.data:
                write_file(path, item.data)
            written.append(str(path))
        card = self.folder / CARD
        write_file(card, seal(markdown, {MANIFEST: self.manifest.record.sha256, **self._new}))
        for name in self._earlier.keys() - self._new.keys() - {MANIFEST}:
            (self.folder / name).unlink(missing_ok=True)
        return [str(card), *written]

    def _our_card(self, files: Mapping[str, object]) -> dict[str, str]:
        """What the README.md that is there lists."""
        path = self.folder / CARD
        data = _bytes(path)
        if data is None:
            return {}
        listed = sealed_files(data)
        entry = files.get(CARD)
        recorded = entry.get("sha256") if isinstance(entry, dict) else None
        if listed is None and hashlib.sha256(data).hexdigest() != recorded:
            raise RefusedError(
                "is not as truecast wrote it, and would be overwritten", where=str(path), fix="move it away first"
            )
        return listed or {}

    def _check_records(self) -> None:
        """Raises: RefusedError where a record would replace a file that is neither the same nor an earlier card's."""
        folder = self.folder / RECORDS
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise RefusedError("is no folder of its own", where=str(folder), fix="move it away first")
        for name in self._new.keys() | (self._earlier.keys() - {MANIFEST}):
            data = _bytes(self.folder / name)
            if data is None:
                continue
            if hashlib.sha256(data).hexdigest() not in (self._new.get(name), self._earlier.get(name)):
                raise RefusedError(
                    "is not as an earlier card recorded it, and would be overwritten",
                    where=str(self.folder / name),
                    fix="move it away first",
                )


def _bytes(path: Path) -> bytes | None:
    """The bytes of a regular file of moderate size, None where there is nothing. Raises: RefusedError for anything else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size > max(MAX_BYTES, 1 << 30):
        raise RefusedError("is no file of ours", where=str(path), fix="move it away first")
    return path.read_bytes()


def _check_sizes(folder: Path, files: Mapping[str, object]) -> None:
    """Raises: InputError where a file of the checkpoint is not of the size that the manifest records."""
    for name, entry in files.items():
        path = folder / name
        if name == CARD or not isinstance(entry, dict) or not path.is_file():
            continue
        if path.stat().st_size != entry.get("bytes"):
            raise InputError(
                "is not of the size that the manifest records: is this another checkpoint?",
                where=str(path),
                fix="name the manifest of this checkpoint, or convert again",
            )
