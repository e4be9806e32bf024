"""The folder that a card is written into: nothing in it that is not ours is overwritten, and no link is followed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from truecast.checkpoint.card_seal import CARD, MAX_BYTES, RECORDS, seal, sealed_files
from truecast.checkpoint.journal import FOLDER, MANIFEST
from truecast.checkpoint.lock import lock_folder
from truecast.checkpoint.source import SHARD_SUFFIX
from truecast.checkpoint.writer import PARTIAL_SUFFIX, write_file
from truecast.cli.card_begun import begin, begun, done
from truecast.cli.card_records import Given
from truecast.errors import InputError, RefusedError


class CardFolder:
    """OUT as it is before the card is written; as a context, locked against other runs in it.

    Raises: InputError where OUT is no folder, or holds another checkpoint than the manifest's; RefusedError where its
    README.md or a record is not truecast's, or another run is at work there.
    """

    def __init__(self, folder: Path, manifest: Given, given: Sequence[Given]) -> None:
        if not folder.is_dir():
            raise InputError("is no folder", where=str(folder), fix="name the folder that `truecast convert` wrote")
        self.folder, self.manifest, self.given = folder, manifest, given
        self._new = {item.record.file: item.record.sha256 for item in given}

    def __enter__(self) -> CardFolder:
        own = self.folder / FOLDER
        if own.is_symlink():
            raise RefusedError("is no folder of its own", where=str(own), fix="move it away first")
        self._made = [path for path in (own / "lock", own) if not path.exists()]
        self._lock = lock_folder(self.folder, own, "run")
        try:
            files = self.manifest.record.object("files")
            _check_sizes(self.folder, files)
            _check_manifest(self.folder, self.manifest, files)
            self._earlier = self._our_card(files)
            self._begun = begun(self.folder)
            self._check_records()
        except BaseException:
            self._let_go()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        for path in self._made:  # while the lock is held
            if path.name == FOLDER:
                with suppress(OSError):  # a card that was stopped has left its notes there
                    path.rmdir()
            else:
                path.unlink(missing_ok=True)
        os.close(self._lock)

    def write(self, markdown: str) -> list[str]:
        """Write records, then the card, then remove records of the card before. Returns the paths written.

        First it notes which records are its own, so that whatever card comes after a kill knows them.
        """
        card = self.folder / CARD
        text = seal(markdown, {MANIFEST: self.manifest.record.sha256, **self._new})
        if len(text) > MAX_BYTES:
            raise InputError(
                f"would have {len(text):,} bytes, more than any card", where=str(card), fix="give fewer records"
            )
        begin(self.folder, (self._new, self._earlier, *self._begun))
        written = []
        if not (self.folder / MANIFEST).exists():
            write_file(self.folder / MANIFEST, self.manifest.data)
        for item in self.given:
            path = self.folder / item.record.file
            if path.is_symlink() or not path.exists() or path.read_bytes() != item.data:
                write_file(path, item.data)
            written.append(str(path))
        write_file(card, text)
        for name in set().union(self._earlier, *self._begun) - self._new.keys() - {MANIFEST}:
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / (name + PARTIAL_SUFFIX)).unlink(missing_ok=True)
        done(self.folder)
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
        known = (self._new, self._earlier, *self._begun)
        for name in set().union(*known) - {MANIFEST}:
            data = _bytes(self.folder / name)
            if data is None:
                continue
            if hashlib.sha256(data).hexdigest() not in [files.get(name) for files in known]:
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


def _check_manifest(folder: Path, manifest: Given, files: Mapping[str, object]) -> None:
    """Raises: InputError where OUT has another manifest, or none because its conversion never ended."""
    data = _bytes(folder / MANIFEST)
    if data is not None and data != manifest.data:
        raise InputError(
            f"is not {folder / MANIFEST}",
            where=manifest.record.where,
            fix="leave out --manifest, or move the other away",
        )
    missing = [name for name in files if name.endswith(SHARD_SUFFIX) and not (folder / name).is_file()]
    if data is None and missing and any(folder.glob(f"*{SHARD_SUFFIX}")):
        raise InputError("is not there", where=str(folder / missing[0]), fix="convert again, to the end")


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
