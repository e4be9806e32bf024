"""Evals on the card: rows of the comparison, how each was made, and what limits the score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from truecast.report.card.columns import ABSENT, Cell, Row, numbered, row, setups, with_interval
from truecast.report.card.content import Inline, Words, joined
from truecast.report.card.record import Record
from truecast.report.card.server import server_words
from truecast.report.words import percent


def check_eval(record: Record) -> None:
    """Raises: InputError where the scores are missing, or not what the answers give."""
    record.object("settings")
    record.object("server")
    task_of(record)
    scored: list[list[dict[str, Any]]] = []
    asked = 0
    for i in range(len(record.array("problems"))):
        samples = record.array("problems", i, "samples")
        asked += len(samples)
        for j in range(len(samples)):
            record.object("problems", i, "samples", j)
            if samples[j].get("error") is None and not isinstance(samples[j].get("correct"), bool):
                record.share("problems", i, "samples", j, "correct")
        kept = [s for s in samples if s.get("error") is None]
        if kept:
            scored.append(kept)
    answers = [s for kept in scored for s in kept]
    if not answers:
        raise record.bad("hold no answer that was scored", "problems")
    record.same(len(answers), "scores", "answers")
    record.same(asked - len(answers), "scores", "errors")
    record.same(math.fsum(math.fsum(float(s["correct"]) for s in kept) / len(kept) for kept in scored) / len(scored),
                "scores", "score")  # fmt: skip
    record.same(sum(s.get("truncated") is True for s in answers) / len(answers), "scores", "truncated")
    record.same(sum(s.get("empty") is True for s in answers) / len(answers), "scores", "empty")
    record.same(len(scored), "scores", "scored_problems")
    record.estimate(("scores", "score"), ("scores", "interval"), low=0.0, high=1.0)
    for name in _measures(record):
        at = ("scores", "measures", name)
        record.estimate((*at, "score"), (*at, "interval"), low=0.0, high=1.0)


def _measures(record: Record) -> list[str]:
    """Names of other ways to count. Raises: InputError where they are no object."""
    return [] if record.get("scores", "measures") is None else list(record.object("scores", "measures"))


def task_of(record: Record) -> Words:
    """The task's name."""
    at = ("task",) if isinstance(record.get("task"), str) else ("task", "name")
    return (record.text(*at),)


def eval_setups(records: Sequence[Record]) -> list[list[Record]]:
    """Evals of the same task and settings, together."""
    return setups(records, lambda r: [r.get("task"), r.get("settings")])


def eval_rows(records: Sequence[Record], columns: Sequence[str]) -> Iterator[Row]:
    """Score, share of answers that were cut off, and counts, for each task."""
    found = eval_setups(records)
    for number, same in enumerate(found):
        first, mark = same[0], numbered(number, len(found))
        title = *task_of(first), ", score", mark
        yield row(
            title, same, columns, lambda r: with_interval(r, ("scores", "score"), ("scores", "interval"), percent)
        )
        for name in _measures(first):
            yield row(
                (*task_of(first), ", ", first.text_key("scores", "measures", name), mark), same, columns, _measure(name)
            )
        yield row(
            (*task_of(first), ", cut off", mark),
            same,
            columns,
            lambda r: (r.figure("scores", "truncated", words=percent),),
        )
        yield row((*task_of(first), ", problems, answers, errors", mark), same, columns, _counts)


def _counts(record: Record) -> Words:
    return joined([(record.counted("scores", key),) for key in ("scored_problems", "answers", "errors")])


def _measure(name: str) -> Cell:
    at = ("scores", "measures", name)

    def cell(record: Record) -> Words:
        if record.get(*at) is None:
            return (ABSENT,)
        return with_interval(record, (*at, "score"), (*at, "interval"), percent)

    return cell


def eval_how(record: Record, mark: str) -> Words:
    """How an eval was made, in a sentence."""
    words: list[Inline] = [record.name, ", ", *task_of(record), f"{mark}: ", *server_words(record, "server"), ". "]
    settings = record.object("settings")
    told: list[Words] = [
        (record.text_key("settings", name), " ", record.scalar("settings", name))
        for name, value in settings.items()
        if not isinstance(value, (dict, list)) and value is not None
    ]
    sampling = settings.get("sampling")
    if isinstance(sampling, list):
        for i in range(len(sampling)):
            at = ("settings", "sampling", i)
            told += [(record.text_key(*at, name), " ", record.scalar(*at, name)) for name in record.object(*at)]
    unit = record.get("scores", "unit")
    by = (" Unit of sampling: ", record.text("scores", "unit"), ".") if isinstance(unit, str) else ()
    return (*words, *joined(told), ".", *by)


def eval_remarks(record: Record) -> Iterator[Words]:
    """Warnings of the eval's own report."""
    for i in range(len(record.array("scores", "warnings"))):
        yield record.name, ", ", *task_of(record), ": ", record.text("scores", "warnings", i), "."
