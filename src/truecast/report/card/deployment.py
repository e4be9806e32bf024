"""How to serve it: the planned command with its environment, each setting with its reason, and the notes."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator

from truecast.report.card.cast import FEW_ROWS
from truecast.report.card.content import (
    Block,
    Code,
    Details,
    Fence,
    Figure,
    Inline,
    Listing,
    Words,
    heading,
    paragraph,
    table,
)
from truecast.report.card.record import Record, pointer

_HERE, _DRAFT = "$MODEL", "$DRAFT"
_REQUIRED = "plug-in, required: "
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

_EXPRESSION = re.compile(r"(?:[\w./:,@%+=-]|\$[A-Z_]+|\$\{[A-Z_]+(?::-\$?[\w.]*)?\})*", re.ASCII)
"""A value between double quotes in which a shell puts variables, and runs nothing."""
_COMMANDS = {
    "dd1553344f4025651a03e27a93f7883f20039770028093322d9d50a68a76c4c2",
    "38317bfb06e484a090671518acc32e48ab5ce2db38752bbde983b72da4d3fc63",
}
"""SHA-256 of the expressions with a command in them that ``truecast launch`` writes: a node's address, its interface."""


def check_launch(record: Record, target: tuple[str, str]) -> None:
    """Raises: InputError where the plan is of another format or lacks what a node runs. ``target``: format, dialect."""
    for key, expected in zip(("format", "dialect"), target, strict=True):
        if record.string("model", key) != expected:
            raise record.bad(f"is {record.string('model', key)!r:.40}, and this checkpoint is {expected}", "model", key)
    for key in ("environment", "arguments"):
        for i in range(len(record.array(key))):
            name = record.string(key, i, "name")
            if set(name) - set(_NAME):
                raise record.bad("is no name of a flag or variable", key, i, "name")
            value = record.get(key, i, "value")
            if value is not None and (not isinstance(value, str) or not value.isprintable()):
                raise record.bad("is no text on one line", key, i, "value")
            if record.get(key, i, "shell") is True and not _is_expression(value or ""):
                raise record.bad("is no shell expression of truecast's", key, i, "value")
    record.count("replicas")
    record.count("tp")


def _is_expression(value: str) -> bool:
    return bool(_EXPRESSION.fullmatch(value)) or hashlib.sha256(value.encode()).hexdigest() in _COMMANDS


def deployment(record: Record, measured: bool) -> Iterator[Block]:
    """The section on serving. ``measured``: the card has figures of servers too, which this plan need not describe."""
    nodes = record.count("nodes_per_replica")
    yield heading(2, "Deployment")
    words: list[Inline] = [
        "Planned by ", Code("truecast launch"), " for SGLang ", record.text("sglang"), " on ", record.text("topology", code=True),
        ", profile ", record.text("profile"), ": ", record.counted("replicas"), _of(record, "replicas", " replica"),
        " of ", record.counted("tp"),
        _of(record, "tp", " GPU"),
        ". It is a plan from the checkpoint's headers, not a measurement",
    ]  # fmt: skip
    if measured:
        words += [": the servers that were measured are described above"]
    places = set(_places(record).values())
    if _HERE in places:
        words += [". ", Code(_HERE), " is this folder, or its name on the hub"]
    if record.get("draft") is not None:
        words += [". ", *((Code(_DRAFT), " is the draft model's folder: ") if _DRAFT in places else ("Draft model: ",))]
        words += [_draft(record)]
    yield paragraph(*words, ".")
    if nodes > 1:
        last = record.derived(f"{nodes - 1}", nodes - 1, "less 1", "nodes_per_replica")
        yield paragraph("Run the same on every node, with ", Code("NODE_RANK"), " from 0 to ", last, " and ", Code("HEAD"),
                        ", the address of node 0.")  # fmt: skip
    yield Fence(tuple(_lines(record)))
    notes = range(len(record.array("notes")))
    required = [i for i in notes if record.string("notes", i).startswith(_REQUIRED)]
    if required:
        yield heading(3, "Required fixes")
        yield paragraph("SGLang as released lacks these; truecast's plug-in has them, which the ", Code("setup.sh"), " of ",
                        Code("truecast launch --out"), " puts beside SGLang.")  # fmt: skip
        yield Listing(
            tuple((_shown(record, record.string("notes", i).removeprefix(_REQUIRED), "notes", i),) for i in required)
        )
    if rest := [i for i in notes if i not in required]:
        yield heading(3, "Notes of the plan")
        yield Listing(tuple((_shown(record, record.string("notes", i), "notes", i),) for i in rest))
    rows = [
        (record.text(key, i, "name", code=True), _shown(record, record.string(key, i, "why"), key, i, "why"))
        for key in ("environment", "arguments")
        for i in range(len(record.array(key)))
    ]
    yield heading(3, "Why each setting")
    why = table("ll", ("setting", "why"), rows)
    yield why if len(rows) <= FEW_ROWS else Details("All settings", (why,))


def _lines(record: Record) -> Iterator[Words]:
    for i in range(len(record.array("environment"))):
        yield "export ", record.text("environment", i, "name"), "=", *_value(record, "environment", i)
    parts: list[Words] = []
    for i in range(len(record.array("arguments"))):
        flag: Words = (record.text("arguments", i, "name"),)
        parts.append(
            (*flag, " ", *_value(record, "arguments", i)) if record.get("arguments", i, "value") is not None else flag
        )
    yield ("sglang serve \\",)
    for part in parts[:-1]:
        yield "  ", *part, " \\"
    if parts:
        yield "  ", *parts[-1]


def _value(record: Record, key: str, i: int) -> Words:
    """Quoted for a shell; an expression of the plan's own stays one, between double quotes."""
    value = record.get(key, i, "value") or ""
    at = (key, i, "value")
    if (place := _places(record).get(value)) is not None:
        return (record.derived(f'"{place}"', value, "a place on the machine that planned", *at),)
    if record.get(key, i, "shell") is True:
        return (Figure(f'"{value}"', value, record.file, pointer(at), how="between double quotes"),)
    quoted = shlex.quote(value)
    return (Figure(quoted, value, record.file, pointer(at), how="" if quoted == value else "quoted"),)


def _places(record: Record) -> dict[str, str]:
    """Folders of the machine that planned -> the variable that stands for them. Names on the hub stay as they are."""
    found = {}
    for i in range(len(record.array("arguments"))):
        name, value = record.string("arguments", i, "name"), record.get("arguments", i, "value")
        if name.endswith("-path") and isinstance(value, str) and value.startswith(("/", "~")):
            found[value] = _HERE if name == "--model-path" else _DRAFT
    return found


def _shown(record: Record, text: str, *path: str | int) -> Figure:
    """A text of the plan, with variables for places of the machine that planned."""
    for place, name in _places(record).items():
        text = text.replace(place, name)
    how = "" if text == record.get(*path) else "without a place on the machine that planned"
    return record.derived(text, text, how, *path)


def _of(record: Record, key: str, unit: str) -> str:
    return unit if record.count(key) == 1 else unit + "s"


def _draft(record: Record) -> Figure:
    name = record.string("draft")
    short = name.rstrip("/").rpartition("/")[2] if name.startswith(("/", "~", ".")) else name
    return record.derived(short, short, "" if short == name else "the part behind the last slash", "draft", code=True)
