"""What a conversion has finished so far, so that the same command can go on after a kill.

``OUT/.truecast/journal.json`` says what run this folder belongs to: source, plan and version. Beside it lies one
record per finished shard. A record is written after the shard is synced and before it takes its final name, so a
shard under its final name always has a record. One run at a time: the folder is locked while a run lives.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from truecast.checkpoint.lock import lock_folder
from truecast.checkpoint.records import encode_json, load_object, load_sealed, write_sealed
from truecast.checkpoint.writer import PARTIAL_SUFFIX, explained, write_file
from truecast.errors import InputError, RefusedError

FOLDER = ".truecast"
JOURNAL = "journal.json"
MANIFEST = "truecast.json"


class Journal:
    """The open journal of one output folder. Use as a context: the lock goes with it.

    ``identity`` maps ``source``, ``plan``, ``version`` (and ``stamps`` of local shards) to what they are in this run.
    ``options`` in it, name -> value, decide nothing: they tell in what two plans differ.
    Raises: InputError if ``out`` holds anything that truecast did not write; RefusedError if it belongs to a different
    source, plan or version, or another run is at work in it.
    """

    def __init__(self, out: Path, identity: dict[str, Any]) -> None:
        self.out = out
        self.folder = out / FOLDER
        with explained(out):
            self._made = not out.exists()
            _check_ours(out)
        self._lock = lock_folder(out, self.folder, "run")
        try:
            self._claim(identity)
        except BaseException:
            os.close(self._lock)
            raise

    def _claim(self, identity: dict[str, Any]) -> None:
        path = self.folder / JOURNAL
        self._fresh = not path.exists()
        if self._fresh:
            write_file(path, encode_json(identity))
            return
        before = load_object(path)
        keys = (identity.keys() | before.keys()) - {"options"}
        different = sorted(k for k in keys if identity.get(k) != before.get(k))
        if different:
            problem = f"belongs to a run with a different {' and '.join(different)}"
            if different == ["plan"] and (options := _changes(before.get("options"), identity.get("options"))):
                problem = f"belongs to a run with other options: {options}"
            now, then = identity.get("stamps"), before.get("stamps")
            if different == ["stamps"] and isinstance(now, dict) and isinstance(then, dict):
                shard = next(name for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name))
                problem = f"the source's {shard} was written to since this run began (its size or time differs)"
            raise RefusedError(
                problem, where=str(self.out), fix="convert into another folder, or remove this one and start again"
            )

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with contextlib.suppress(OSError):  # the error itself is what the user must hear of
                self._clean_up()
        os.close(self._lock)

    def _clean_up(self) -> None:
        """Remove the partial files of workers that were stopped, and every trace of a run that wrote nothing."""
        self._remove_partial()
        untouched = not (self.folder / "shards").exists() and list(self.out.iterdir()) == [self.folder]
        if self._fresh and untouched:
            shutil.rmtree(self.folder)
            if self._made:
                self.out.rmdir()

    def finished(self) -> dict[str, dict[str, Any]]:
        """Records of the shards that stand complete under their final name. Leftovers of a kill are removed."""
        records: dict[str, dict[str, Any]] = {}
        for path in sorted((self.folder / "shards").glob("*.json")):
            record, shard = load_sealed(path), self.out / path.name.removesuffix(".json")
            if shard.is_file() and shard.stat().st_size == record["bytes"]:
                records[shard.name] = record
        self._remove_partial()
        return records

    def _remove_partial(self) -> None:
        for leftover in self.out.rglob(f"*{PARTIAL_SUFFIX}"):
            if leftover.is_symlink() or not leftover.is_dir():
                leftover.unlink(missing_ok=True)


def _changes(then: Any, now: Any) -> str:
    """In which options two runs differ; empty where that is not known."""
    if not isinstance(then, dict) or not isinstance(now, dict):
        return ""
    names = [name for name in now if name in then and then[name] != now[name]]
    return ", ".join(f"{name} {then[name]} there, {now[name]} here" for name in names)


def write_record(out: Path, shard: str, record: dict[str, Any]) -> None:
    """Note a finished shard; ``record`` holds at least its size under ``bytes``. Workers call this, each for its own.

    What it says goes into the manifest, so an edited one is not believed.
    """
    write_sealed(out / FOLDER / "shards" / f"{shard}.json", record)


def _check_ours(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError("is a file, not a folder", where=str(out), fix="choose another output folder")
    for ours in (out / FOLDER, out / FOLDER / "shards"):
        if ours.is_symlink():
            raise InputError(
                "is a link, which truecast never makes", where=str(ours), fix="choose another output folder"
            )
    if out.is_dir() and any(out.iterdir()) and not (out / FOLDER).is_dir():
        raise InputError(
            "is not empty and truecast did not write it", where=str(out), fix="choose another output folder"
        )
