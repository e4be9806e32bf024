"""``/v1/completions``: text or token ids in, what follows them out.

With ``echo`` or ``prompt_logprobs`` the prompt's own log probabilities come too.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from truecast.models.sampling import Scored
from truecast.models.text import Tokenizer
from truecast.serve.reference.choices import pieces, sampler, spelled, tokens_of
from truecast.serve.reference.engine import Finished, Item, Job
from truecast.serve.reference.errors import ApiError
from truecast.serve.reference.schema import CompletionRequest
from truecast.serve.reference.served import Served
from truecast.serve.reference.stops import StopFilter
from truecast.serve.reference.wire import DONE, event, usage

DEFAULT_TOKENS = 16
"""OpenAI's default of ``max_tokens`` here."""


class Completion:
    """One request, checked; then either ``whole`` or ``stream``. Each prompt has ``n`` sequences, one after another."""

    def __init__(self, served: Served, request: CompletionRequest) -> None:
        served.require_name(request.model)
        self._served, self._request = served, request
        self.prompts = prompts_of(served.tokenizer, request)
        self._wanted = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
        for prompt in self.prompts:
            served.room(prompt, self._wanted)
        self._head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
        self._head["model"] = served.names[0]

    async def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        runs = self._runs()
        kept: list[list[Piece]] = [[] for _ in runs]
        async for number, piece in pieces(self._served.engine, runs, self._job):
            kept[number].append(piece)
        choices = [self._choice(number, _sum(pieces)) for number, pieces in enumerate(kept)]
        return {**self._head, "choices": choices, "usage": self._usage(runs)}

    async def stream(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        runs, head = self._runs(), dict(self._head)
        if self._request.with_usage:
            head["usage"] = None
        try:
            async for number, piece in pieces(self._served.engine, runs, self._job):
                if piece.text or piece.end or ((self._request.logprobs is not None or self._request.return_token_ids)
                                               and piece.items):  # fmt: skip
                    yield event({**head, "choices": [self._choice(number, piece)]})
        except ApiError as error:
            yield event(error.document())
        else:
            if self._request.with_usage:
                yield event({**head, "choices": [], "usage": self._usage(runs)})
        yield DONE

    def _runs(self) -> list[Run]:
        request, tokenizer = self._request, self._served.tokenizer
        return [
            Run(tokenizer, prompt, request.stops, self._served.stops, echo=bool(request.echo), scores=self._scores,
                measured=request.prompt_logprobs is not None)
            for prompt in self.prompts
            for _ in range(request.n)
        ]  # fmt: skip

    @property
    def _scores(self) -> bool:
        return bool(self._request.echo) and self._request.logprobs is not None

    def _job(self, number: int, emit: Callable[[Item], None]) -> Job:
        request = self._request
        return Job(
            self.prompts[number // request.n],
            emit,
            max_tokens=self._wanted,
            sampler=sampler(request.temperature, request.top_p, request.seed, number % request.n),
            stops=self._served.stops,
            top=max(request.logprobs or 0, request.prompt_logprobs or 0),
            echo=self._scores or request.prompt_logprobs is not None,
        )

    def _choice(self, number: int, piece: Piece) -> dict[str, Any]:
        request = self._request
        choice: dict[str, Any] = {"index": number, "text": piece.text, "finish_reason": piece.end, "logprobs": None}
        if request.logprobs is not None:
            choice["logprobs"] = _logprobs(piece, self._served.tokenizer, request.logprobs)
        if request.prompt_logprobs is not None:
            choice["prompt_logprobs"] = _prompt_logprobs(piece.prompt, self._served.tokenizer, request.prompt_logprobs)
            choice["prompt_token_ids"] = self.prompts[number // request.n]
        if request.return_token_ids:
            choice["token_ids"] = tokens_of(piece.items[piece.echoed :])
            choice["prompt_token_ids"] = self.prompts[number // request.n]
        return choice

    def _usage(self, runs: Sequence[Run]) -> dict[str, int]:
        return usage(sum(map(len, self.prompts)), sum(run.made for run in runs))


def prompts_of(tokenizer: Tokenizer, request: CompletionRequest) -> list[list[int]]:
    """Ids of each prompt; the spelling of a special token in a text is ordinary text."""
    given = request.prompt
    if isinstance(given, str):
        return [tokenizer.encode(given)]
    if isinstance(given[0], int):
        return [[i for i in given if isinstance(i, int)]]
    return [tokenizer.encode(p) if isinstance(p, str) else p for p in given if not isinstance(p, int)]


class Piece:
    """What one item gives: text, the token (``echoed``: how many of ``items`` are the prompt's), the end.

    ``prompt``: tokens of the prompt that were measured, echoed or not.
    """

    def __init__(self) -> None:
        self.text = ""
        self.items: list[Scored] = []
        self.prompt: list[Scored] = []
        self.offsets: list[int] = []
        self.echoed = 0
        self.end: str | None = None


class Run:
    """One sequence being read."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str], ends: frozenset[int], *, echo: bool,
        scores: bool, measured: bool = False,
    ) -> None:  # fmt: skip
        self.made = 0
        self._stream, self._filter, self._ends = tokenizer.stream(), StopFilter(stops), ends
        self._echo_text = tokenizer.decode(prompt) if echo and not scores else ""
        self._prompt_left = len(prompt) if scores or measured else 0
        self._shown = scores
        self._length = len(self._echo_text)
        """Characters of the text so far, those held back included."""

    def take(self, item: Scored | Finished) -> Piece:
        """What this item gives."""
        piece = Piece()
        piece.text, self._echo_text = self._echo_text, ""
        if isinstance(item, Finished):
            piece.text += self._show(self._stream.finish()) + self._filter.finish()
            piece.end = item.reason
        elif self._prompt_left and not self._shown:
            self._prompt_left -= 1
            piece.prompt.append(item)
        else:
            piece.items.append(item)
            piece.offsets.append(self._length)
            if self._prompt_left:
                self._prompt_left -= 1
                piece.echoed = 1
                piece.prompt.append(item)
                text = self._stream.feed(item.token) + ("" if self._prompt_left else self._stream.finish())
                self._length += len(text)
                piece.text += text
            else:
                self.made += 1
                piece.text += self._show("" if item.token in self._ends else self._stream.feed(item.token))
        if self._filter.hit:
            piece.end = "stop"
        return piece

    def _show(self, text: str) -> str:
        self._length += len(text)
        return self._filter.feed(text)


def _sum(pieces: Sequence[Piece]) -> Piece:
    total = Piece()
    for piece in pieces:
        total.text += piece.text
        total.items += piece.items
        total.prompt += piece.prompt
        total.offsets += piece.offsets
        total.echoed += piece.echoed
        total.end = piece.end
    return total


def _logprobs(piece: Piece, tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    def name(token: int) -> str:
        return spelled(tokenizer.token_bytes(token))

    return {
        "tokens": [name(i.token) for i in piece.items],
        "token_logprobs": [i.logprob for i in piece.items],
        "top_logprobs": [None if i.logprob is None else {name(t): p for t, p in i.top[:top]} for i in piece.items],
        "text_offset": piece.offsets,
    }


def _prompt_logprobs(items: Sequence[Scored], tokenizer: Tokenizer, top: int) -> list[dict[str, Any] | None]:
    """For each token of the prompt: itself and the ``top`` most probable in its place, by id. None for the first."""

    def of(item: Scored) -> dict[str, Any] | None:
        if item.logprob is None:
            return None
        found: dict[str, dict[str, Any]] = {
            str(t): {"logprob": p, "rank": rank} for rank, (t, p) in enumerate(item.top[:top], 1)
        }
        own = {str(item.token): found.get(str(item.token)) or {"logprob": item.logprob, "rank": None}}
        return {
            token: {**told, "decoded_token": spelled(tokenizer.token_bytes(int(token)))}
            for token, told in {**own, **found}.items()
        }

    return [of(item) for item in items]
