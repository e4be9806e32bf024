"""Kimi-K3's chat format: messages to token ids.

Everything is elements, ``<|open|>tag key="value"<|sep|> ... <|close|>tag<|sep|>``, whose three markers are special ids;
tags, attributes and all text of users and tools are ordinary ids, so no text can pose as structure. A message ends
with ``<|end_of_msg|>``. There is no BOS and nothing between elements. Source: Kimi-K3's published chat encoding; the
wording of the system messages is what the model was trained on and must be kept to the letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as short
from typing import Any

from truecast.errors import InputError
from truecast.models.kimi_k3.arguments import arguments_of
from truecast.models.kimi_k3.tokenizer import K3Tokenizer

OPEN, CLOSE, SEP, END_OF_MESSAGE = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
EFFORTS = ("low", "high", "max")
DEFAULT_EFFORT = "max"
"""What the published tokenizer takes where the caller names none."""

_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
_MORE_TOOLS = (
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n```json\n{}\n```"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_CHOICE = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
_RAW_JSON = (
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without markdown code "
    "blocks (```json) or any additional formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n```json\n{}\n```"


def render(
    tokenizer: K3Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    *,
    thinking: bool = True,
    effort: str | None = DEFAULT_EFFORT,
    tool_choice: str | None = None,
    response_format: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Ids of a conversation in OpenAI's message form.

    ``reasoning_content`` of an assistant message is its think channel, which is there, if empty, whenever ``thinking``.
    ``effort`` is one of :data:`EFFORTS`, or None to say nothing of it. ``tool_choice``: ``auto``, ``none`` or
    ``required``. With ``add_generation_prompt`` the ids end where the model goes on: inside ``think`` (``thinking``)
    or inside ``response``.
    Raises: InputError for a message, part, effort or choice that the format does not have.
    """
    if effort is not None and effort not in EFFORTS:
        raise InputError(f"thinking effort {short(effort)} is none of {', '.join(EFFORTS)}")
    writer = _Writer(tokenizer)
    if tools:
        writer.system("tool-declare", _TOOLS.format(_compact(tools)))
    if thinking and effort is not None:
        writer.system("thinking-effort", _EFFORT.format(effort))
    _conversation(writer, _in_call_order(messages), thinking)
    if tool_choice in _CHOICE:
        writer.system("tool-choice", _CHOICE[tool_choice])
    elif tool_choice not in (None, "auto"):
        raise InputError(f"tool_choice {short(tool_choice)} is none of auto, none, required")
    if response_format is not None:
        _response_format(writer, response_format)
    if add_generation_prompt:
        writer.open("message", [("role", "assistant")])
        writer.open("think" if thinking else "response")
    return writer.ids


class _Writer:
    """Collects ids: markers as special ids; each stretch of text is encoded by itself, as the published encoder does."""

    def __init__(self, tokenizer: K3Tokenizer) -> None:
        self.ids: list[int] = []
        self._text = tokenizer.encode
        self._open, self._close, self._sep, self._end = map(tokenizer.special, (OPEN, CLOSE, SEP, END_OF_MESSAGE))

    def text(self, text: str) -> None:
        self.ids += self._text(text)

    def open(self, tag: str, attributes: Iterable[tuple[str, object]] = ()) -> None:
        self.ids.append(self._open)
        self.text(tag)
        for key, value in attributes:
            escaped = str(value).replace("&", "&amp;").replace('"', "&quot;")
            for piece in (f" {key}", '="', escaped, '"'):
                self.text(piece)
        self.ids.append(self._sep)

    def close(self, tag: str) -> None:
        self.ids.append(self._close)
        self.text(tag)
        self.ids.append(self._sep)

    def element(self, tag: str, text: Iterable[str], attributes: Iterable[tuple[str, object]] = ()) -> None:
        self.open(tag, attributes)
        for part in text:
            self.text(part)
        self.close(tag)

    def message(self, text: Iterable[str], attributes: Iterable[tuple[str, object]]) -> None:
        self.element("message", text, attributes)
        self.ids.append(self._end)

    def end_message(self) -> None:
        self.close("message")
        self.ids.append(self._end)

    def system(self, kind: str, body: str) -> None:
        self.message([body], [("role", "system"), ("type", kind)])


def _conversation(writer: _Writer, messages: Sequence[Mapping[str, Any]], thinking: bool) -> None:
    calls: Sequence[Any] = ()
    results = 0
    for number, message in enumerate(messages):
        where, role = f"messages[{number}]", message.get("role")
        for key in ("name", "tool"):
            if not isinstance(message.get(key), str | None):
                raise InputError(f"{key} is no text", where=where)
        named = [("role", role)] + ([("name", message["name"])] if message.get("name") else [])
        if role == "assistant":
            calls, results = message.get("tool_calls") or (), 0
            writer.open("message", named)
            _assistant(writer, message, thinking, where)
            writer.end_message()
        elif role == "tool":
            results += 1
            name = message.get("tool", message.get("name"))
            if name is None and results <= len(calls):
                name = _function(calls[results - 1], where)["name"]
            if name is None:
                raise InputError("answers no tool call of the message before it", where=where, fix="give it a name")
            content = _parts(message.get("content"), where)
            writer.message(content, [("role", "tool"), ("tool", name), ("index", results)])
        elif role == "system" and message.get("tools"):
            writer.system("tool-declare", _MORE_TOOLS.format(_compact(message["tools"])))
        elif role in ("user", "system"):
            writer.message(_parts(message.get("content"), where), named)
        else:
            raise InputError(f"role {short(role)} is none of system, user, assistant, tool", where=where)


def _assistant(writer: _Writer, message: Mapping[str, Any], thinking: bool, where: str) -> None:
    if thinking:
        writer.element("think", _parts(message.get("reasoning_content") or message.get("reasoning"), where))
    writer.element("response", _parts(message.get("content"), where))
    calls = message.get("tool_calls") or ()
    if not calls:
        return
    writer.open("tools")
    for index, call in enumerate(calls, 1):
        function = _function(call, where)
        writer.open("call", [("tool", function["name"]), ("index", index)])
        arguments = arguments_of(function.get("arguments"), where)
        if isinstance(arguments, str):
            writer.element("json", [arguments], [("type", "object")])
        else:
            for argument in arguments:
                writer.element("argument", [argument.text], [("key", argument.key), ("type", argument.type)])
        writer.close("call")
    writer.close("tools")


def _function(call: Any, where: str) -> Mapping[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError("a tool call has no function with a name", where=where)
    return function


def _parts(content: Any, where: str) -> list[str]:
    """Texts of a message's content: a string, or parts of type text. Raises: InputError for anything else."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence):
        raise InputError("content is neither a string nor a list of parts", where=where)
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise InputError("content has a part that is no text", where=where, fix="images are not read here")
    return [part["text"] for part in content]


def _in_call_order(messages: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Each run of tool results in the order of the calls that they answer, if all of them name one by its id."""
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InputError("is no object", where=f"messages[{number}]")
    ordered: list[Mapping[str, Any]] = []
    calls: dict[str, tuple[int, str]] = {}
    start = 0
    while start < len(messages):
        message = messages[start]
        if message.get("role") == "assistant":
            calls = _by_id(message.get("tool_calls") or (), f"messages[{start}]")
        end = start
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
        run = messages[start:end]
        answered = [calls.get(str(m.get("tool_call_id", m.get("id")))) for m in run]
        if run and all(answered):
            matched = [(*found, m) for found, m in zip(answered, run, strict=True) if found is not None]
            matched.sort(key=lambda entry: entry[0])
            ordered += [{**m, "tool": name} for _, name, m in matched]
        else:
            ordered += run or [message]
        start = max(end, start + 1)
    return ordered


def _by_id(calls: Any, where: str) -> dict[str, tuple[int, str]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InputError("tool_calls is no list", where=where)
    found: dict[str, tuple[int, str]] = {}
    for position, call in enumerate(calls):
        function = _function(call, where)
        if call.get("id") is not None:
            found.setdefault(str(call["id"]), (position, function["name"]))
    return found


def _response_format(writer: _Writer, wanted: Mapping[str, Any]) -> None:
    kind = wanted.get("type")
    if kind == "json_object":
        writer.system("response-format", _RAW_JSON.format(kind))
    elif kind == "json_schema":
        schema = wanted.get("json_schema")
        if not isinstance(schema, Mapping):
            raise InputError("response_format json_schema has no object json_schema")
        schema = schema.get("schema", schema)
        writer.system("response-format", _RAW_JSON.format(kind) + _SCHEMA.format(_compact(schema)))
    elif kind not in (None, "text"):
        raise InputError(f"response_format {short(kind)} is none of text, json_object, json_schema")


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise InputError("tools or a schema are no plain JSON") from None
