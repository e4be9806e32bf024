"""A run's folder: what run it belongs to, and every answer as soon as it is there.

    DIR/run.json        task, settings and server; the same command must mean the same run
    DIR/answers.jsonl   one line a finished sample, synced before the next one counts
    DIR/eval.json       the record, written at the end
    DIR/logs/           inspect's own logs, with every prompt and reply

A line names the model as its replies do: a server that changes in the middle gives itself away.
A kill loses only answers that were under way; a line that it tore is dropped. Errors are not written down: the next run
asks again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from truecast.errors import InputError, RefusedError
from truecast.evals.answers import Answer, kept_answer

Key = tuple[str, int]
"""Inspect's id of the sample, and the seed."""


class Journal:
    """The open folder of one run; use as a context.

    Raises: RefusedError if it belongs to another run, or one is at work in it; InputError if it cannot be written or read.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "answers.jsonl").open("a+b")
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror}", where=str(folder)) from None
        try:
            self._lock()
            self.models: dict[str, None] = {}
            self.first = self._claim(json.loads(json.dumps(identity)))
            self.answers = self._read()
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError("another eval is at work in it", where=str(self.folder)) from None

    def _claim(self, identity: dict[str, Any]) -> dict[str, Any]:
        """What the run was begun with. The server's arguments may change under way, not what it serves."""
        path = self.folder / "run.json"
        if not path.exists():
            write_json(path, identity)
            return identity
        before = _object(path)
        apart = [f"{k}.{n}" for k in ("task", "settings") for n in _differing(before.get(k), identity.get(k))]
        apart += [
            f"server.{n}"
            for n in _differing(before.get("server"), identity.get("server"))
            if n in ("engine", "model", "version")
        ]
        if apart:
            raise RefusedError(
                f"holds answers of a run with another {', '.join(apart)}",
                where=str(self.folder),
                fix="give another --out, or the same task, settings and server",
            )
        return before

    def _read(self) -> dict[Key, list[Answer]]:
        self._file.seek(0)
        found: dict[Key, list[Answer]] = {}
        good = 0
        for line in self._file.read().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
                found[str(entry["sample"]), int(entry["seed"])] = [kept_answer(answer) for answer in entry["answers"]]
                self.models.update(dict.fromkeys(map(str, entry.get("models", []))))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise InputError(
                    f"line {len(found) + 1} is no answer", where=str(self.folder / "answers.jsonl"), fix="remove it"
                ) from None
            good += len(line)
        self._file.truncate(good)
        return found

    def add(self, key: Key, answers: Iterable[Answer], models: Sequence[str] = ()) -> None:
        """Keep the answers of a finished sample, and what its replies call the model that wrote them."""
        kept = list(answers)
        entry = {"sample": key[0], "seed": key[1], "answers": [asdict(a) for a in kept], "models": list(models)}
        self._file.write(_encoded(json.dumps(entry, ensure_ascii=False)) + b"\n")
        self.models.update(dict.fromkeys(models))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.answers[key] = kept

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write it whole or not at all. Raises: InputError where that fails."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(_encoded(json.dumps(document, indent=1, ensure_ascii=False)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", where=str(path)) from None


def _encoded(text: str) -> bytes:
    """JSON as UTF-8. Half a character, which a server may send, stays the escape that JSON has for it."""
    return text.encode("utf-8", "backslashreplace")


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), fix="give another --out") from None
    if not isinstance(found, dict):
        raise InputError("is no object", where=str(path), fix="give another --out")
    return found


def _differing(before: Any, now: Any) -> list[str]:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return [] if before == now else ["*"]
    return sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
