"""Reading what Kimi-K3 writes, id by id: its think and response channels and its tool calls.

The model goes on inside ``think`` (or ``response``), so no opening marker need come first. Markers count only as special
ids. Nothing here raises, whatever the ids: what cannot be read as the format is passed on as content, spelled out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from truecast.models.kimi_k3.arguments import Argument, as_json
from truecast.models.kimi_k3.chat import CLOSE, END_OF_MESSAGE, OPEN, SEP
from truecast.models.kimi_k3.tokenizer import K3Tokenizer

_TAG = re.compile(r'([A-Za-z][\w-]*)((?: [\w-]+="[^"]*")*) ?')
_ATTRIBUTE = re.compile(r' ([\w-]+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More text of the think channel."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More text of the response channel, or what fits no channel."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole tool call; ``arguments`` is the text of a JSON object. ``index`` counts from 0."""

    index: int
    name: str
    arguments: str


Event = Reasoning | Content | ToolCall


class ReplyParser:
    """Feed ids in order, then ``finish``; each gives the events that are certain by then.

    ``ended`` is true once the message has ended; ids after that give nothing.
    """

    def __init__(self, tokenizer: K3Tokenizer, *, thinking: bool = True) -> None:
        self.ended = False
        self.calls = 0
        self.tokenizer = tokenizer
        self._open, self._close, self._sep, self._end = map(tokenizer.special, (OPEN, CLOSE, SEP, END_OF_MESSAGE))
        self._stream = tokenizer.stream()
        self._channel = "think" if thinking else "response"
        """``think``, ``response``, ``between`` them, or ``tools``."""
        self._marker: tuple[int, str] | None = None
        """Opening or closing marker whose ``<|sep|>`` has not come, and its text so far."""
        self._call: _Call | None = None
        self._events: list[Event] = []

    def feed(self, token: int) -> list[Event]:
        """Events that this id completes."""
        if self.ended:
            return []
        if token == self._end:
            self._give_up()
            self.ended = True
        elif token in (self._open, self._close):
            self._flush()
            self._give_up_marker()
            self._marker = (token, "")
        elif token == self._sep and self._marker is not None:
            kind, text = self._marker[0], self._marker[1] + self._stream.finish()
            self._marker = None
            self._tag(kind == self._open, text)
        else:
            self._take(self._stream.feed(token))
        return self._drain()

    def finish(self) -> list[Event]:
        """Events of what is left where the ids end early: an unfinished marker or call is content."""
        self._give_up()
        return self._drain()

    def _drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _take(self, text: str) -> None:
        if not text:
            return
        if self._marker is not None:
            self._marker = (self._marker[0], self._marker[1] + text)
        elif self._call is not None:
            self._call.take(text)
        elif self._channel == "think":
            self._events.append(Reasoning(text))
        elif self._channel == "response" or text.strip():
            self._events.append(Content(text))

    def _flush(self) -> None:
        self._take(self._stream.finish())

    def _give_up_marker(self) -> None:
        if self._marker is not None:
            kind, text = self._marker
            self._marker = None
            self._misread((OPEN if kind == self._open else CLOSE) + text)

    def _misread(self, spelling: str) -> None:
        """What is no tag of this place stands for itself."""
        if self._call is not None:
            self._call.spoil(spelling)
        else:
            self._events.append(Content(spelling))

    def _give_up(self) -> None:
        self._flush()
        self._give_up_marker()
        self._drop_call()

    def _drop_call(self) -> None:
        if self._call is not None:
            self._events.append(Content(self._call.spelling))
            self._call = None

    def _tag(self, opens: bool, text: str) -> None:
        spelling = f"{OPEN if opens else CLOSE}{text}{SEP}"
        found = _TAG.fullmatch(text)
        name = found.group(1) if found else ""
        attributes = {k: _unescape(v) for k, v in _ATTRIBUTE.findall(found.group(2))} if found else {}
        if self._call is not None and name not in ("message", "tools", "response", "think"):
            if name == "call" and not opens:
                self._end_call(spelling)
            elif name == "call":
                self._drop_call()
                self._call = _Call(attributes, spelling)
            else:
                self._call.tag(opens, name, attributes, spelling)
            return
        self._drop_call()
        if name == "call" and opens and self._channel in ("tools", "between"):
            self._call = _Call(attributes, spelling)
        elif name == "message" and not opens:
            self._channel = "between"  # <|end_of_msg|> follows
        elif name in ("think", "response", "tools") and opens:
            self._channel = name
        elif name == self._channel and not opens:
            self._channel = "between"
        else:
            self._misread(spelling)

    def _end_call(self, spelling: str) -> None:
        call, self._call = self._call, None
        assert call is not None
        call.spelling += spelling
        arguments = call.arguments()
        if arguments is None:
            self._events.append(Content(call.spelling))
        else:
            self._events.append(ToolCall(self.calls, call.name, arguments))
            self.calls += 1


class _Call:
    """One call being read; ``spelling`` is all of it as the model wrote it."""

    def __init__(self, attributes: Mapping[str, str], spelling: str) -> None:
        self.name = attributes.get("tool", "")
        self.spelling = spelling
        self._sound = bool(self.name)
        self._inside: tuple[str, Mapping[str, str]] | None = None
        self._text = ""
        self._typed: list[Argument] = []
        self._json: str | None = None

    def take(self, text: str) -> None:
        self.spelling += text
        if self._inside is not None:
            self._text += text
        elif text.strip():
            self._sound = False

    def spoil(self, spelling: str) -> None:
        self.spelling += spelling
        self._sound = False

    def tag(self, opens: bool, name: str, attributes: Mapping[str, str], spelling: str) -> None:
        self.spelling += spelling
        if opens and self._inside is None and name in ("argument", "json"):
            self._inside, self._text = (name, attributes), ""
        elif not opens and self._inside is not None and name == self._inside[0]:
            self._close(name, self._inside[1])
            self._inside = None
        else:
            self._sound = False

    def _close(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "json":
            self._json = self._text
        elif "key" in attributes:
            self._typed.append(Argument(attributes["key"], attributes.get("type", "string"), self._text))
        else:
            self._sound = False

    def arguments(self) -> str | None:
        """JSON text of the arguments, or None if this is no call."""
        if not self._sound or self._inside is not None or (self._json is not None and self._typed):
            return None
        try:
            if self._json is None:
                return as_json(self._typed)
            return self._json if isinstance(json.loads(self._json), dict) else None
        except (ValueError, RecursionError):
            return None


def _unescape(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")
