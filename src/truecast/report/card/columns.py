"""The columns of the comparison and the setups of its rows: only what was measured alike stands in one row."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from truecast.errors import InputError
from truecast.report.card.content import Inline, Words
from truecast.report.card.record import Record
from truecast.report.words import figure

ABSENT = "not measured"

Row = tuple[Inline | Words, ...]
Cell = Callable[[Record], Words]


def columns_of(records: Sequence[Record]) -> list[str]:
    """Labels in the order in which the user gave them, this checkpoint (the empty label) last."""
    labels = dict.fromkeys(record.label for record in records if record.label)
    return [*labels, ""]


def setups(records: Sequence[Record], key: Callable[[Record], Any]) -> list[list[Record]]:
    """Records that were made alike by ``key``, together. Raises: InputError for two of one label."""
    found: dict[str, list[Record]] = {}
    for record in records:
        same = found.setdefault(json.dumps(key(record), sort_keys=True), [])
        for other in same:
            if other.label == record.label:
                raise InputError(
                    f"measures what {other.where} measures, of the same label",
                    where=record.where,
                    fix="give one of them, or another LABEL=",
                )
        same.append(record)
    return list(found.values())


def row(title: Inline | Words, records: Sequence[Record], columns: Sequence[str], cell: Cell) -> Row:
    """One row: the cell of each label's record, or that it was not measured."""
    by_label = {record.label: record for record in records}
    return (title, *(cell(by_label[label]) if label in by_label else ABSENT for label in columns))


def numbered(number: int, of: int) -> str:
    """`` [2]`` behind a row's title where there is more than one setup of its kind."""
    return f" [{'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[number % 26]}]" if of > 1 else ""


def with_interval(
    record: Record, mean: tuple[str | int, ...], interval: tuple[str | int, ...], words: Callable[[float], str] = figure
) -> Words:
    """``0.0154 (0.0142 to 0.0167)``; without an interval it says so."""
    ends = record.interval(*interval, words=words)
    return (record.figure(*mean, words=words), *((" (", *ends, ")") if ends else (" (no interval)",)))
