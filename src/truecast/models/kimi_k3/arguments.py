"""Arguments of a tool call: from OpenAI's JSON to the typed elements of Kimi-K3's chat format, and back.

A value that is no string keeps the literal that the caller (or the model) wrote: ``1e2`` stays ``1e2``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from truecast.errors import InputError

_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: ``text`` is a string's own text, of any other ``type`` its JSON literal."""

    key: str
    type: str
    text: str


def arguments_of(value: Any, where: str = "") -> list[Argument] | str:
    """Arguments of a call given as an object or as its JSON text; a text that is no JSON object comes back as it is.

    Raises: InputError for anything else.
    """
    if value is None or value == "":
        return []
    if isinstance(value, Mapping):
        try:
            return [
                Argument(str(k), json_type(v), v if isinstance(v, str) else json.dumps(v, ensure_ascii=False))
                for k, v in value.items()
            ]
        except (TypeError, ValueError, RecursionError):
            raise InputError("arguments of a tool call are no plain JSON", where=where) from None
    if not isinstance(value, str):
        raise InputError("arguments of a tool call are neither an object nor its JSON text", where=where)
    try:
        return _members(value)
    except (ValueError, RecursionError):
        return value


def json_type(value: Any) -> str:
    """Name of a JSON value's type, as the format's ``type`` attribute spells it."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if value is None:
        return "null"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"


def as_json(arguments: Iterable[Argument]) -> str:
    """JSON object of typed arguments, literals kept; of a key given twice the last counts.

    Raises: ValueError (or RecursionError) where a literal is no JSON.
    """
    members: dict[str, str] = {}
    for argument in arguments:
        if argument.type == "string":
            literal = json.dumps(argument.text, ensure_ascii=False)
        else:
            literal = argument.text.strip(_BLANKS)
            json.loads(literal, parse_constant=_no_number)
        members[argument.key] = literal
    return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {v}" for k, v in members.items()) + "}"


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _members(text: str) -> list[Argument]:
    """Members of a JSON object, one level deep; what follows its closing brace is left out. Raises: ValueError."""
    decoder = json.JSONDecoder(strict=False)
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("no object")
    members: list[Argument] = []
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return members
    while True:
        key, at = decoder.raw_decode(text, at)
        at = _skip(text, at)
        if not isinstance(key, str) or text[at : at + 1] != ":":
            raise ValueError("no member")
        start = _skip(text, at + 1)
        value, end = decoder.raw_decode(text, start)
        members.append(Argument(key, json_type(value), value if isinstance(value, str) else text[start:end]))
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            return members
        if text[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at
