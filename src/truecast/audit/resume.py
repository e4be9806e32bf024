"""The folder of one audit: whose it is, and how far it got.

``OUT/.audit/journal.json`` says what is compared and how. Beside it lies one record for each finished layer, written
after the states that the layer left are on disk.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from truecast.checkpoint.lock import lock_folder
from truecast.checkpoint.records import damaged, encode_json, load_object, load_sealed, write_sealed
from truecast.checkpoint.writer import PARTIAL_SUFFIX, explained, write_file
from truecast.errors import InputError, RefusedError

FOLDER = ".audit"
RESULT = "audit.json"


class Folder:
    """The open output folder of an audit; a context that holds its lock.

    ``identity`` maps what must agree for a run to go on (``reference``, ``corpus`` ...) to what it is in this run;
    ``chosen`` are numbers that the first run chose and a later one must keep: after opening they are that run's.
    Raises: InputError if ``out`` holds what no audit wrote; RefusedError if it is another audit's, or one is at work.
    """

    def __init__(self, out: Path, identity: dict[str, Any], chosen: dict[str, int]) -> None:
        self.out, self.own, self.states = out, out / FOLDER, out / FOLDER / "states"
        self.answers = out / FOLDER / "answers"
        with explained(out):
            _check_ours(out)
        self._lock = lock_folder(out, self.own, "audit")
        try:
            self.chosen = self._claim(identity, chosen)
        except BaseException:
            os.close(self._lock)
            raise

    def _claim(self, identity: dict[str, Any], chosen: dict[str, int]) -> dict[str, int]:
        for leftover in self.own.glob(f"*{PARTIAL_SUFFIX}"):
            leftover.unlink()
        path = self.own / "journal.json"
        if not path.exists():
            if (self.own / "finished").exists() or any(self.own.glob("step-*.json")):
                raise damaged(path)  # whose records they are is not known
            write_file(path, encode_json({"identity": identity, "chosen": chosen}))
            return chosen
        before = load_object(path)
        then = before.get("identity")
        if not isinstance(then, dict) or not isinstance(before.get("chosen"), dict):
            raise damaged(path)
        different = sorted(key for key in identity.keys() | then.keys() if identity.get(key) != then.get(key))
        if different:
            raise RefusedError(
                f"belongs to an audit with a different {' and '.join(different)}",
                where=str(self.out),
                fix="choose another folder, or remove this one and start again",
            )
        return {**chosen, **before["chosen"]}

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def records(self) -> list[dict[str, Any]]:
        """What was noted so far, from step 0 without a gap. Raises: RefusedError for an edited or cut record."""
        found: list[dict[str, Any]] = []
        while (path := self._record(len(found))).exists():
            found.append(load_sealed(path))
        return found

    def note(self, step: int, record: dict[str, Any]) -> None:
        """Note a finished step; durable when this returns."""
        write_sealed(self._record(step), record)

    def result(self) -> dict[str, Any] | None:
        """The document of an audit that is finished here, else None."""
        return load_object(self.out / RESULT) if (self.own / "finished").exists() else None

    def finish(self, document: dict[str, Any]) -> None:
        """Write the document; states, answers of servers and records are removed."""
        write_file(self.out / RESULT, json.dumps(document, indent=1).encode() + b"\n")
        write_file(self.own / "finished", b"")
        shutil.rmtree(self.states, ignore_errors=True)
        shutil.rmtree(self.answers, ignore_errors=True)
        for path in self.own.glob("step-*.json"):
            path.unlink()

    def _record(self, step: int) -> Path:
        return self.own / f"step-{step:05d}.json"


def _check_ours(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError("is a file, not a folder", where=str(out), fix="choose another output folder")
    for ours in (out / FOLDER, out / FOLDER / "states", out / FOLDER / "answers"):
        if ours.is_symlink():
            raise InputError("is a link, which no audit makes", where=str(ours), fix="choose another output folder")
    if out.is_dir() and any(out.iterdir()) and not (out / FOLDER).is_dir():
        raise InputError("is not empty and no audit wrote it", where=str(out), fix="choose another output folder")
