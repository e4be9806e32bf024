"""The last section: every record that the card is made from, with its hash and the command that made it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from truecast.report.card.content import Block, Code, Fence, Figure, Inline, Label, Words, heading, paragraph, table
from truecast.report.card.record import Record


def sources(records: Sequence[Record]) -> Iterator[Block]:
    """The table of records. ``records``: the manifest first."""
    yield heading(2, "Where the figures come from")
    yield paragraph(
        "Every figure above stands in one of these files, beside this card. A file says what its program recorded, no more.",
    )  # fmt: skip
    rows: list[tuple[Inline | Words, ...]] = []
    for record in records:
        sha = Figure(record.sha256, record.sha256, record.file, "", how="sha256 of the file", code=True)
        rows.append(
            ((Code(record.file),) if not record.label else (Code(record.file), " (", record.name, ")"),
             record.text("schema", code=True), (_command(record),), (sha,))
        )  # fmt: skip
    yield table("llll", ("file", "schema", "made by", "sha256"), rows)
    yield paragraph(
        "This writes the same card again from them; with ", Code("--json"), " it lists where each figure stands:"
    )
    yield Fence((("truecast card .", *_options(records[1:])),))


def _options(records: Sequence[Record]) -> Words:
    """The options by which these records were given, with their names beside the card."""
    return tuple(
        part
        for record in records
        for part in (
            f" --{record.kind} ",
            Label(shlex.quote(f"{record.label}={record.file}" if record.label else record.file)),
        )
    )


def _command(record: Record) -> Figure:
    """The command line as recorded, without places on the machine; else the one that makes such a record."""
    words = record.get("command")
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        shown = [_word(word) for word in words]
        if shown[0] != "truecast":
            shown.insert(0, "truecast")
        return record.derived(
            shlex.join(shown), shlex.join(words), "without places on the machine", "command", code=True
        )
    match record.kind:
        case "manifest":
            target, dialect = record.string("target", "format"), record.string("target", "dialect")
            text, at = f"truecast convert SOURCE THIS_FOLDER --to {target} --dialect {dialect}", "target"
        case "launch":
            text = f"truecast launch THIS_FOLDER --topology {record.string('topology')} --sglang {record.string('sglang')} --json"
            at = "topology"
        case "audit":
            text, at = f"truecast audit SOURCE {record.label or 'THIS_FOLDER'} --corpus FILE", "corpus"
        case "compare":
            text, at = "truecast compare A B --json", "kind"
        case "verify":
            text, at = "truecast verify SOURCE THIS_FOLDER --json", "counts"
        case _:
            text, at = f"truecast {record.kind}", "schema"
    return record.derived(text, text, "the command that makes such a record", at, code=True)


def _word(word: str) -> str:
    """A word of a command line without what belongs to a machine: addresses, and folders above a file."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", word):
        return "URL"
    name, equals, value = word.partition("=")
    if equals and (value.startswith(("/", "~", "..")) or "://" in value):
        return f"{name}={_word(value)}"
    return word.rstrip("/").rpartition("/")[2] if word.startswith(("/", "~", "..")) else word
