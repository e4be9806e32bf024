"""Rows of a data set: from the user's file, an installed package, or the hub; and the hash that says which they were."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truecast.errors import InputError

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """``source``: where they come from, for messages and the record."""

    rows: Sequence[Row]
    source: str

    @property
    def identity(self) -> dict[str, Any]:
        """Number of rows and the SHA-256 of their content, whatever file they came in."""
        text = "\n".join(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in self.rows)
        return {"rows": len(self.rows), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def from_file(path: Path) -> Rows:
    """JSON lines, or CSV with a header line (by the name's ending). Raises: InputError with file and line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("is no UTF-8 text", where=str(path), fix="give JSON lines or CSV") from None
    rows = _csv(text, path) if path.suffix.lower() == ".csv" else _json_lines(text, path)
    if not rows:
        raise InputError("holds no rows", where=str(path))
    return Rows(rows, str(path))


def _csv(text: str, path: Path) -> list[Row]:
    try:
        return [{key: value or "" for key, value in row.items() if key} for row in csv.DictReader(io.StringIO(text))]
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}", where=str(path)) from None


def _json_lines(text: str, path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError("is no JSON object", where=f"{path}, line {number}", fix="give JSON lines, or a .csv")
        rows.append(row)
    return rows


def packaged(package: str, inner: str) -> Path | None:
    """A file of an installed package, without importing it; None where either is not there."""
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(place) / inner).is_file():
            return path
    return None


def from_hub(repository: str, split: str, subset: str | None, form: str) -> Rows:
    """Rows of a data set on the Hugging Face hub, by the package ``datasets``.

    ``form``: what a row of a file would have to hold, for the message. Raises: InputError where they cannot be had.
    """
    remedy = f"give --data FILE, JSON lines or CSV, each row with {form}"
    try:
        from datasets import load_dataset
    except ModuleNotFoundError:
        raise InputError(
            "the package datasets, which reads the hub, is not installed", where=repository, fix=remedy
        ) from None
    try:
        loaded = load_dataset(repository, subset, split=split)
    except Exception as error:  # it raises what the network, the hub or a file format raise
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"cannot be had from the hub: {line}", where=repository, fix=remedy) from None
    return Rows([dict(row) for row in loaded], repository)


def text_of(row: Row, number: int, source: str, *names: str) -> str:
    """The first of these fields that the row has, as text. Raises: InputError naming them where none is there."""
    for name in names:
        value = row.get(name)
        if isinstance(value, str | int) and str(value).strip():
            return str(value)
    raise InputError(f"has no {' or '.join(names)}", where=f"{source}, row {number + 1}")


def id_of(row: Row, number: int, name: str) -> str:
    """``name/id``, or ``name/number`` where rows have no id."""
    keys = ("id", "key", "Record ID", "problem_idx", "problem_id")
    found = next((row[key] for key in keys if row.get(key) not in (None, "")), number)
    return f"{name}/{found}"


def checked(ids: Sequence[str], source: str) -> None:
    """Raises: InputError where an id comes twice."""
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise InputError(f"id {name!r} comes twice", where=source)
        seen.add(name)
