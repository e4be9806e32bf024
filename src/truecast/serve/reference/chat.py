"""``/v1/chat/completions``: messages in Kimi-K3's format, its channels and tool calls out."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from truecast.errors import InputError
from truecast.models.kimi_k3.chat import DEFAULT_EFFORT, render
from truecast.models.kimi_k3.reply import Event, Reasoning, ReplyParser, ToolCall
from truecast.models.sampling import Scored
from truecast.models.text import Tokenizer
from truecast.serve.reference.choices import pieces, sampler, spelled, tokens_of
from truecast.serve.reference.engine import Finished, Item, Job
from truecast.serve.reference.errors import ApiError
from truecast.serve.reference.schema import ChatRequest
from truecast.serve.reference.served import Served
from truecast.serve.reference.stops import StopFilter
from truecast.serve.reference.wire import DONE, event, usage


class Chat:
    """One request, checked and rendered; then either ``whole`` or ``stream``."""

    def __init__(self, served: Served, request: ChatRequest) -> None:
        served.require_name(request.model)
        self._served, self._request = served, request
        self.prompt = prompt_of(served, request)
        self._room = served.room(self.prompt, request.limit)
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": served.names[0]}

    async def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        turns, made = self._turns(), 0
        async for number, piece in pieces(self._served.engine, turns, self._job):
            made += len(piece.items)
            turns[number].keep(piece)
        choices = [{"index": i, **turn.choice(self._request)} for i, turn in enumerate(turns)]
        if self._request.return_token_ids:  # vLLM has the prompt's ids beside the choices, SGLang in each of them
            choices = [{**choice, "prompt_token_ids": self.prompt} for choice in choices]
        document = {**self._head, "object": "chat.completion", "choices": choices}
        document["usage"] = usage(len(self.prompt), made)
        if self._request.return_token_ids:
            document["prompt_token_ids"] = self.prompt
        return document

    async def stream(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        turns, made, request = self._turns(), 0, self._request
        head: dict[str, Any] = {**self._head, "object": "chat.completion.chunk"}
        if request.with_usage:
            head["usage"] = None
        for number in range(request.n):
            first: dict[str, Any] = {**head, "choices": [_chunk(number, {"role": "assistant", "content": ""})]}
            if request.return_token_ids:
                first["prompt_token_ids"] = self.prompt
            yield event(first)
        try:
            async for number, piece in pieces(self._served.engine, turns, self._job):
                made += len(piece.items)
                extra: dict[str, Any] = {}
                if request.logprobs and piece.items:
                    extra["logprobs"] = {"content": _logprobs(piece.items, self._served.tokenizer)}
                if request.return_token_ids and piece.items:
                    extra["token_ids"] = tokens_of(piece.items)
                delta = piece.delta()
                if delta or extra:
                    yield event({**head, "choices": [{**_chunk(number, delta), **extra}]})
                if piece.end is not None:
                    yield event({**head, "choices": [_chunk(number, {}, piece.end)]})
        except ApiError as error:
            yield event(error.document())
        else:
            if request.with_usage:
                yield event({**head, "choices": [], "usage": usage(len(self.prompt), made)})
        yield DONE

    def _turns(self) -> list[Turn]:
        tokenizer, request = self._served.chat_tokenizer, self._request
        return [Turn(ReplyParser(tokenizer, thinking=request.thinking), request.stops) for _ in range(request.n)]

    def _job(self, number: int, emit: Callable[[Item], None]) -> Job:
        request = self._request
        return Job(
            self.prompt,
            emit,
            max_tokens=self._room,
            sampler=sampler(request.temperature, request.top_p, request.seed, number),
            stops=self._served.stops,
            top=request.top_logprobs or 0,
        )


def prompt_of(served: Served, request: ChatRequest) -> list[int]:
    """Ids of a chat request's conversation. Raises: ApiError 400 for what the format does not have."""
    if len(request.messages) > served.context:  # each takes several tokens: not worth minutes of rendering
        raise ApiError(
            400,
            f"This model's maximum context length is {served.context} tokens; {len(request.messages)} messages are more",
            code="context_length_exceeded",
        )
    try:
        return render(
            served.chat_tokenizer,
            request.messages,
            request.chosen_tools,
            thinking=request.thinking,
            effort=request.effort or DEFAULT_EFFORT,
            tool_choice=request.choice,
            response_format=request.response_format,
        )
    except InputError as error:
        raise ApiError(400, str(error), param="messages") from None


class Piece:
    """What one item of a sequence gives: text by channel, tool calls, the item if it is a token, and the end if it is."""

    def __init__(self) -> None:
        self.items: list[Scored] = []
        self.reasoning = ""
        self.content = ""
        self.calls: list[ToolCall] = []
        self.end: str | None = None

    def delta(self) -> dict[str, Any]:
        """The parts that are not empty, as a message has them. Both names of the reasoning channel are in use."""
        delta: dict[str, Any] = {}
        if self.reasoning:
            delta["reasoning_content"] = delta["reasoning"] = self.reasoning
        if self.content:
            delta["content"] = self.content
        if self.calls:
            delta["tool_calls"] = [{"index": call.index, **_call(call)} for call in self.calls]
        return delta


class Turn:
    """One answer being read: items in, pieces out; stop strings apply to each channel's text."""

    def __init__(self, parser: ReplyParser, stops: Sequence[str]) -> None:
        self._parser, self._stops = parser, stops
        self._filter, self._channel = StopFilter(stops), ""
        self._total = Piece()

    def take(self, item: Scored | Finished) -> Piece:
        """What this item gives."""
        piece = Piece()
        if isinstance(item, Scored):
            piece.items.append(item)
        events = self._parser.feed(item.token) if isinstance(item, Scored) else self._parser.finish()
        for found in events:
            self._show(piece, found)
        if isinstance(item, Finished):
            self._release(piece)
            piece.end = "tool_calls" if item.reason == "stop" and self._parser.calls else item.reason
        if self._filter.hit:
            piece.end = "stop"
        return piece

    def keep(self, piece: Piece) -> None:
        """Add a piece to the whole answer."""
        total = self._total
        total.items += piece.items
        total.reasoning += piece.reasoning
        total.content += piece.content
        total.calls += piece.calls
        total.end = piece.end

    def choice(self, request: ChatRequest) -> dict[str, Any]:
        """The whole answer."""
        total, tokenizer = self._total, self._parser.tokenizer
        message: dict[str, Any] = {"role": "assistant", "content": total.content or (None if total.calls else "")}
        message["reasoning_content"] = message["reasoning"] = total.reasoning or None
        if total.calls:
            message["tool_calls"] = [_call(call) for call in total.calls]
        logprobs = {"content": _logprobs(total.items, tokenizer)} if request.logprobs else None
        choice: dict[str, Any] = {"message": message, "finish_reason": total.end, "logprobs": logprobs}
        if request.return_token_ids:
            choice["token_ids"] = tokens_of(total.items)
        return choice

    def _show(self, piece: Piece, found: Event) -> None:
        if self._filter.hit:
            return
        if isinstance(found, ToolCall):
            self._release(piece)
            piece.calls.append(found)
            return
        channel = "reasoning" if isinstance(found, Reasoning) else "content"
        if channel != self._channel:
            self._release(piece)
            self._filter, self._channel = StopFilter(self._stops), channel
        _add(piece, channel, self._filter.feed(found.text))

    def _release(self, piece: Piece) -> None:
        if self._channel:
            _add(piece, self._channel, self._filter.finish())


def _add(piece: Piece, channel: str, text: str) -> None:
    if channel == "reasoning":
        piece.reasoning += text
    else:
        piece.content += text


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _chunk(number: int, delta: dict[str, Any], end: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": delta, "finish_reason": end, "logprobs": None}


def _logprobs(items: Sequence[Scored], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {"token": spelled(data), "logprob": logprob, "bytes": list(data)}

    return [{**entry(i.token, i.logprob), "top_logprobs": [entry(*t) for t in i.top]} for i in items]
