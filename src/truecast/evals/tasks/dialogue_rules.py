"""Is the answer to a dialogue item right? Rules for items that say what they expect; no judge, no model.

``expect`` of an item is one of ``{"kind": "number", "value": 7}`` (the last number of the content), ``"text"`` (the content
is ``value``), ``"contains"`` (each of ``values`` is in it), ``"call"`` (one call of ``name`` with ``arguments``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KINDS = {"number": ("value",), "text": ("value",), "contains": ("values",), "call": ("name", "arguments")}
"""Kinds of expectation, and the fields of each."""


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
        numbers = re.findall(r"-?\d+", content)
        return "" if numbers and int(numbers[-1]) == expect["value"] else f"said {content!r}, not {expect['value']}"
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
    except ValueError:
        return f"arguments are no JSON: {arguments!r}"
    if name != expect["name"] or given != expect["arguments"]:
        return f"called {name} with {arguments}"
    return ""
