"""Asking a chat completion, whole or streamed, and reading the parts that the checks look at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from truecast.serve.smoke.http import Answer, Refused, Server, ServerFault

QUESTION, RESULT = "What is 17 * 3?", 51
"""Easy on purpose: it shows that the weights and the kernels make sense, and nano-K3 can do it too."""
EFFORT = "high"
BUDGET = 1200
"""Tokens for thinking and answer. A Kimi-K3 needs 512 at least, its card says."""
MARKERS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "<think>", "</think>", "◁think▷", "◁/think▷")
"""What stands between channels and must not be seen by a client."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; ``arguments`` as the server gave them."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A choice of a chat completion and the usage. ``made``: completion tokens; -1 where usage is lacking."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]
    finish: str
    prompt_tokens: int = -1
    made: int = -1
    total: int = -1
    logprobs: Any = None

    @property
    def text(self) -> tuple[str, str, tuple[Call, ...]]:
        """All that the model said."""
        return self.reasoning, self.content, self.calls


@dataclass(frozen=True, slots=True)
class Streamed:
    """A reply put together from events, and what was wrong with these."""

    reply: Reply
    problems: list[str] = field(default_factory=list)


def body(server: Server, user: str, **more: Any) -> dict[str, Any]:
    """A request for one greedy answer."""
    messages = [{"role": "user", "content": user}]
    start = {"model": server.model, "messages": messages, "temperature": 0, "max_tokens": BUDGET}
    return start | {"reasoning_effort": EFFORT} | more


def ask(server: Server, user: str, **more: Any) -> Reply:
    """The answer to a user's message. Raises: ServerFault."""
    return _reply(server.post("/chat/completions", body(server, user, **more)).document())


def ask_streamed(server: Server, user: str, **more: Any) -> Streamed:
    """The same as server-sent events, with the usage. Raises: ServerFault."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = server.post("/chat/completions", body(server, user, **options, **more))
    if answer.status != 200:
        raise Refused(answer.status, answer.reason())
    return _assembled(answer)


def _reply(document: Mapping[str, Any]) -> Reply:
    try:
        choice = document["choices"][0]
        message = choice["message"]
        calls = tuple(
            Call(str(c["function"]["name"]), str(c["function"]["arguments"])) for c in message.get("tool_calls") or ()
        )
        return Reply(
            _text(message.get("content")),
            _text(message.get("reasoning_content") or message.get("reasoning")),
            calls,
            str(choice.get("finish_reason")),
            *_usage(document.get("usage")),
            logprobs=choice.get("logprobs"),
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ServerFault(f"answers with no chat completion: {json.dumps(document)[:200]}") from None


def _text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value or ""


def _usage(usage: Any) -> tuple[int, int, int]:
    found = usage if isinstance(usage, dict) else {}
    counts = [found.get(f"{kind}_tokens") for kind in ("prompt", "completion", "total")]
    first, second, third = (c if isinstance(c, int) else -1 for c in counts)
    return first, second, third


def _assembled(answer: Answer) -> Streamed:
    problems: list[str] = []
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        problems.append(f"content-type {answer.headers.get('content-type')!r}")
    data = [line[5:].strip() for line in answer.body.decode(errors="replace").splitlines() if line.startswith("data:")]
    if not data or data[-1] != "[DONE]":
        problems.append("the last event is not [DONE]")
    read = _Reader(problems)
    for event in data:
        if event != "[DONE]":
            read.event(event)
    return Streamed(read.reply(), problems)


class _Reader:
    """Collects the events of one stream."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._content = self._reasoning = self._finish = ""
        self._calls: dict[int, Call] = {}
        self._usage: Any = None
        self._ids: set[str] = set()

    def event(self, text: str) -> None:
        """One event. Raises: ServerFault for what is none."""
        try:
            document = json.loads(text)
            if "error" in document:
                raise ServerFault(f"breaks its stream off: {document['error']}")
            self._ids.add(str(document.get("id")))
            self._usage = document.get("usage") or self._usage
            for choice in document["choices"]:
                self._choice(choice)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ServerFault(f"streams what is no chunk: {text[:120]!r}") from None

    def _choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        content, reasoning = (
            _text(delta.get("content")),
            _text(delta.get("reasoning_content") or delta.get("reasoning")),
        )
        if self._finish and (content or reasoning):
            self._problems.append("text after finish_reason")
        if reasoning and self._content:
            self._problems.append("reasoning after content")
        self._content, self._reasoning = self._content + content, self._reasoning + reasoning
        for piece in delta.get("tool_calls") or ():
            function, number = piece.get("function") or {}, int(piece.get("index", 0))
            before = self._calls.get(number, Call("", ""))
            self._calls[number] = Call(
                before.name + _text(function.get("name")), before.arguments + _text(function.get("arguments"))
            )
        if choice.get("finish_reason"):
            self._finish = str(choice["finish_reason"])

    def reply(self) -> Reply:
        """What the stream says in all."""
        if len(self._ids) != 1:
            self._problems.append(f"{len(self._ids)} ids in one stream")
        if not self._finish:
            self._problems.append("no finish_reason")
        if self._usage is None:
            self._problems.append("no usage although include_usage asks for it")
        calls = tuple(self._calls[n] for n in sorted(self._calls))
        return Reply(self._content, self._reasoning, calls, self._finish, *_usage(self._usage))
