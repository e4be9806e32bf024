"""Load tests on the card: rows of the comparison, how each was made, and what its own report found wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from truecast.report.card.columns import ABSENT, Cell, Row, numbered, row, setups, with_interval
from truecast.report.card.content import Inline, Words, joined
from truecast.report.card.record import Record
from truecast.report.card.server import server_words

SHOWN = (("stream", "tok/s per stream"), ("aggregate", "aggregate tok/s"), ("ttft", "seconds to the first token"))
"""Figures of a level and what the card calls them."""
_NUMBER = re.compile(r"[-+]?\d(?:[\d.,]*\d)?%?")
_SAME = ("sampling", "requests", "duration", "replicas")


def check_load(record: Record) -> None:
    """Raises: InputError where a figure is missing, or not what its runs give."""
    for key in ("prompts", "sampling", "server"):
        record.object(key)
    if record.document.get("sound") not in (True, False) or record.document.get("complete") not in (True, False):
        raise record.bad("lacks sound or complete")
    if not record.array("levels"):
        raise record.bad("holds nothing", "levels")
    seen = set()
    for i in range(len(record.array("levels"))):
        concurrency = record.count("levels", i, "concurrency")
        if concurrency < 1 or concurrency in seen:
            raise record.bad("is 0, or came before", "levels", i, "concurrency")
        seen.add(concurrency)
        for name, _ in SHOWN:
            _check_figure(record, i, name)
        if record.get("levels", i, "faults") and record.get("sound") is True:
            raise record.bad("are there, and the whole is said to be sound", "levels", i, "faults")
        if record.get("levels", i, "acceptance_length") is not None:
            record.number("levels", i, "acceptance_length", low=0)


def _check_figure(record: Record, level: int, name: str) -> None:
    at = ("levels", level, "figures", name)
    record.object(*at)
    if record.get(*at, "value") is None:
        return
    runs = [record.number(*at, "runs", j, low=0) for j in range(len(record.array(*at, "runs")))]
    if not runs:
        raise record.bad("holds nothing", *at, "runs")
    if record.get("levels", level, "runs") is not None:
        each = [record.get("levels", level, "runs", j, "figures", name) for j in range(_runs(record, level))]
        if [value for value in each if value is not None] != runs:
            raise record.bad("are not the figures of its runs", *at, "runs")
    record.same(math.fsum(runs) / len(runs), *at, "value")
    record.estimate((*at, "value"), (*at, "interval_over_runs"))


def _runs(record: Record, level: int) -> int:
    """How many runs a level had."""
    if record.get("levels", level, "runs") is not None:
        return len(record.array("levels", level, "runs"))
    return len(record.array("levels", level, "figures", "stream", "runs"))


def load_setups(records: Sequence[Record]) -> list[list[Record]]:
    """Load tests of the same prompts and settings, together."""
    return setups(records, lambda r: [r.get("prompts", "sha256") or r.get("prompts"), *(r.get(key) for key in _SAME)])


def load_rows(records: Sequence[Record], columns: Sequence[str]) -> Iterator[Row]:
    """Speed of a stream, aggregate and delay at each concurrency."""
    found = load_setups(records)
    for number, same in enumerate(found):
        levels: dict[int, tuple[Record, int]] = {}
        for record in same:
            for i in range(len(record.array("levels"))):
                levels.setdefault(record.count("levels", i, "concurrency"), (record, i))
        for concurrency in sorted(levels):
            first, i = levels[concurrency]
            at = first.counted("levels", i, "concurrency")
            for name, title in SHOWN:
                words = f"{title}, ", at, f" concurrent{numbered(number, len(found))}"
                yield row(words, same, columns, _cell(concurrency, name))
            if any(_accepted(record, concurrency) is not None for record in same):
                words = "accepted tokens a step, ", at, f" concurrent{numbered(number, len(found))}"
                yield row(words, same, columns, _acceptance(concurrency))


def _cell(concurrency: int, name: str) -> Cell:
    """A level's figure of a record."""

    def cell(record: Record) -> Words:
        i = level_of(record, concurrency)
        if i is None or record.get("levels", i, "figures", name, "value") is None:
            return (ABSENT,)
        at = ("levels", i, "figures", name)
        words = with_interval(record, (*at, "value"), (*at, "interval_over_runs"))
        return words if record.get("sound") else (*words, ", not sound")

    return cell


def _acceptance(concurrency: int) -> Cell:
    def cell(record: Record) -> Words:
        i = _accepted(record, concurrency)
        return (ABSENT,) if i is None else (record.figure("levels", i, "acceptance_length"),)

    return cell


def _accepted(record: Record, concurrency: int) -> int | None:
    """The place of the level, where the server told its acceptance length."""
    i = level_of(record, concurrency)
    return None if i is None or record.get("levels", i, "acceptance_length") is None else i


def level_of(record: Record, concurrency: int) -> int | None:
    """The place of the level; None where it was not measured."""
    levels = record.array("levels")
    return next((i for i in range(len(levels)) if record.get("levels", i, "concurrency") == concurrency), None)


def load_how(record: Record, mark: str) -> Words:
    """How a load test was made, in a sentence."""
    runs = [_runs(record, i) for i in range(len(record.array("levels")))]
    least, most = (
        record.derived(f"{n:,}", n, f"number of entries, {what}", "levels", runs.index(n), "figures", "stream", "runs")
        for n, what in ((min(runs), "least"), (max(runs), "most"))
    )
    counts: Words = (least,) if min(runs) == max(runs) else (least, " to ", most)
    words: list[Inline] = [
        record.name, f", load test{mark}: ", *server_words(record, "server"), ". ",
        record.counted("prompts", "distinct"), " different prompts of ", record.text("prompts", "file", code=True), ", ",
        *counts, " run" if max(runs) == 1 else " runs", " at each concurrency",
    ]  # fmt: skip
    for key, what in (("requests", " requests a run"), ("duration", " s a run")):
        if record.get(key) is not None:
            words += [", ", record.scalar(key), what]
    sampling = record.object("sampling")
    if sampling:
        words += [
            ", ",
            *joined([(record.text_key("sampling", name), " ", record.scalar("sampling", name)) for name in sampling]),
        ]
    if record.get("replicas") not in (None, 1):
        words += [", ", record.counted("replicas"), " replicas"]
    return (*words, ".")


def load_remarks(record: Record) -> Iterator[Words]:
    """What the load test's own report found wrong."""
    if not record.get("sound"):
        yield record.name, ", load test: by its own report the figures do not stand."
    if not record.get("complete"):
        yield record.name, ", load test: it was stopped before its last run."
    said: dict[str, list[tuple[int, str, int]]] = {}  # a text without its numbers -> where it stands
    for i in range(len(record.array("levels"))):
        for key in ("faults", "remarks"):
            for j in range(len(record.array("levels", i, key)) if record.get("levels", i, key) is not None else 0):
                text = record.string("levels", i, key, j)
                said.setdefault(_NUMBER.sub("#", text), []).append((i, key, j))
    for places in said.values():
        levels = joined([(record.counted("levels", i, "concurrency"),) for i in dict.fromkeys(i for i, _, _ in places)])
        i, key, j = places[0]
        first = record.text("levels", i, key, j)
        yield record.name, ", load test, ", *levels, " concurrent: ", first, *_others(record, places), "."


def _others(record: Record, places: Sequence[tuple[int, str, int]]) -> Words:
    """The numbers of remarks, from other runs or levels, that say the same as the first of them."""
    texts = {record.string("levels", *at): at for at in reversed(places)}
    del texts[record.string("levels", *places[0])]
    parts: list[Words] = []
    for text, at in reversed(texts.items()):
        found = list(_NUMBER.finditer(text))
        part = text[found[0].start() : found[-1].end()]
        parts.append((record.derived(part, text, "the numbers in it", "levels", *at),))
    return ("; in other runs ", *joined(parts)) if parts else ()
