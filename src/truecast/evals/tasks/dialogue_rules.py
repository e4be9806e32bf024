"""Is the answer to a dialogue item right? Rules for items that say what they expect; no judge, no model.

``expect`` of an item is one of ``{"kind": "number", "value": 7}`` (the last number of the content), ``"text"`` (the content
is ``value``), ``"contains"`` (each of ``values`` is in it), ``"call"`` (one call of ``name`` with ``arguments``).
Numbers are decimal, with a comma between thousands or without; a hyphen after a digit is no sign. Arguments are equal as
JSON has it: 1 is 1.0, and true is not 1.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

VERSION = "dialogue 2"
"""Of these rules: runs by other rules are not compared."""
KINDS = {"number": ("value",), "text": ("value",), "contains": ("values",), "call": ("name", "arguments")}
"""Kinds of expectation, and the fields of each."""
_NUMBER = re.compile(r"(?:(?<![0-9])[-\u2212])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")


def fault_of(expect: Any) -> str:
    """What is wrong with an item's ``expect``; empty if nothing is."""
    fields = KINDS.get(str(expect.get("kind"))) if isinstance(expect, dict) else None
    if fields is None or not all(field in expect for field in fields):
        return f"expect is none of {', '.join(KINDS)} with its fields"
    fine = {
        "number": lambda: _finite(expect["value"]),
        "text": lambda: isinstance(expect["value"], str),
        "contains": lambda: isinstance(expect["values"], list) and all(isinstance(v, str) for v in expect["values"]),
        "call": lambda: isinstance(expect["name"], str) and isinstance(expect["arguments"], dict),
    }
    return "" if fine[expect["kind"]]() else f"expect of kind {expect['kind']} holds values of another type"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the two channels, and calls as ``(name, JSON text)``."""

    content: str
    reasoning: str
    calls: list[tuple[str, str]]
    finished: bool = True


def wrong(item: Mapping[str, Any], answer: Answer) -> str:
    """What is wrong with the answer; empty if nothing is."""
    if not answer.finished:
        return "did not come to an end"
    if not item["thinking"] and answer.reasoning:
        return "thought although it was not to"
    if item["thinking"] and item["effort"] != "low" and not answer.reasoning.strip():
        return "did not think"
    expect, content = item["expect"], answer.content.strip()
    if expect["kind"] == "call":
        return _wrong_call(expect, answer.calls)
    if answer.calls:
        return f"called {answer.calls[0][0]}"
    if expect["kind"] == "number":
        right = _last_number(content) == Decimal(str(expect["value"]))
        return "" if right else f"said {content!r}, not {expect['value']}"
    if expect["kind"] == "text":
        return "" if content == expect["value"] else f"said {content!r}, not {expect['value']!r}"
    lacking = [value for value in expect["values"] if value not in content]
    return f"said {content!r} without {lacking[0]!r}" if lacking else ""


def _wrong_call(expect: Mapping[str, Any], calls: list[tuple[str, str]]) -> str:
    if len(calls) != 1:
        return f"made {len(calls)} calls"
    name, arguments = calls[0]
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return f"arguments are no JSON: {arguments!r}"
    if name != expect["name"] or not _same(given, expect["arguments"]):
        return f"called {name} with {arguments}"
    return ""


def _last_number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "").replace("\u2212", "-")) if found else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _finite(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )
