"""One request as AIPerf recorded it (``profile_export_raw.jsonl``): when each chunk came, with how many tokens.

Token counts are the server's: the running ``usage`` of the chunks where it gives one, else the final ``usage`` spread
evenly over the chunks. Text is never tokenised again (a count of its own, which BOS and runs of spaces change).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.bench.http import server_message
from truecast.bench.usage import adds_up, cached_in, count_in, reasoning_in, unlikely
from truecast.errors import InputError

F64 = NDArray[np.float64]
REASONING, ANSWER, TOOL = 0, 1, 2
"""Channels of a chunk."""
SHOWN_FINISH = 40
"""Characters of a reason to finish."""


@dataclass(frozen=True)
class Request:
    """One request. Times in seconds of the client's wall clock."""

    warmup: bool
    issued: float
    """When the load generator decided to send it."""
    sent: float
    ended: float
    times: F64
    """``[chunks]``: arrival of each chunk that carries tokens."""
    tokens: F64
    """``[chunks]``: tokens of each chunk."""
    channels: NDArray[np.int8]
    """``[chunks]``: REASONING, ANSWER or TOOL."""
    counted: bool
    """Did the server count the tokens of every chunk?"""
    output: int | None
    """Output tokens by the server's usage."""
    prompt: int | None
    cached: int | None
    """Prompt tokens that the server had in its prefix cache, if it says so."""
    reasoning: int | None
    finish: str | None
    error: str | None
    """Why this request does not count; ``None`` for one that finished."""


def read_requests(path: Path, context: int | None = None) -> Iterator[Request]:
    """The requests of one file of AIPerf's raw records, in its order. ``context``: the model's, if it is known.

    Raises: InputError naming the line.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for i, line in enumerate(lines, 1):
                try:
                    yield request_of(json.loads(line), context)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    where = f"{path}, line {i}"
                    raise InputError(f"is no raw record of AIPerf: {error!r}", where=where) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def request_of(record: Mapping[str, Any], context: int | None = None) -> Request:
    """One raw record: what the server sent may be anything. Raises: KeyError, ValueError, TypeError, AttributeError."""
    about = record["metadata"]
    started = int(about["request_start_ns"])
    chunks: list[tuple[int, int | None, int]] = []  # perf_ns, running count, channel
    usage: Mapping[str, Any] = {}
    finish, error, finished_at = None, None, 0
    for message in record["responses"]:
        at = started + int(message["perf_ns"]) - int(record["start_perf_ns"])
        try:
            for event in _events(message):
                error = error or _error_of(event)
                now = _mapping(event.get("usage"))
                usage = now or usage
                for choice in map(_mapping, event.get("choices") or ()):
                    channel = channel_of(_mapping(choice.get("delta")))
                    if channel is not None:
                        chunks.append((at, count_in(now, "completion_tokens"), channel))
                    if choice.get("finish_reason"):
                        finish, finished_at = str(choice["finish_reason"])[:SHOWN_FINISH], at
        except (ValueError, TypeError, RecursionError):
            error = error or "sent an event that is no chunk of a chat completion"
    output = count_in(usage, "completion_tokens") if finish else None
    times, tokens, channels, counted = _chunks(chunks, output, finished_at)
    return Request(
        warmup=about["benchmark_phase"] == "warmup",
        issued=int(about["credit_issued_ns"]) / 1e9,
        sent=started / 1e9,
        ended=int(about["request_end_ns"]) / 1e9,
        times=times,
        tokens=tokens,
        channels=channels,
        counted=counted,
        output=output,
        prompt=count_in(usage, "prompt_tokens"),
        cached=cached_in(usage),
        reasoning=reasoning_in(usage, output),
        finish=finish,
        error=error or _failure(record, finish, output) or unlikely(output, len(chunks), context),
    )


def channel_of(delta: Mapping[str, Any]) -> int | None:
    """Channel of a piece of output; ``None`` where it carries none, such as the opening role."""
    if delta.get("reasoning_content") or delta.get("reasoning"):
        return REASONING
    if delta.get("content"):
        return ANSWER
    return TOOL if delta.get("tool_calls") else None


def _events(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """JSON objects of one server-sent event (``packets``) or of a whole answer (``text``)."""
    texts = [p.get("value") for p in message.get("packets") or () if p.get("name") == "data"] or [message.get("text")]
    for text in texts:
        if text and text.strip() != "[DONE]":
            event = json.loads(text)
            if isinstance(event, dict):
                yield event


def _mapping(value: object) -> Mapping[str, Any]:
    """An object of the server's JSON, empty for ``null``. Raises: TypeError for anything else."""
    if value is not None and not isinstance(value, dict):
        raise TypeError("no object")
    return value or {}


def _chunks(
    chunks: list[tuple[int, int | None, int]], output: int | None, finished_at: int
) -> tuple[F64, F64, NDArray[np.int8], bool]:
    """Times, tokens and channels of the chunks, and whether the tokens are counted rather than spread."""
    times = [at / 1e9 for at, _, _ in chunks]
    channels = [channel for _, _, channel in chunks]
    running = [r for _, r, _ in chunks if r is not None]
    counted = bool(chunks) and len(running) == len(chunks) and adds_up(running, output)
    if counted:
        if output is not None and output > running[-1]:  # the end token has no text: it came with the finish
            running.append(output)
            times.append(max(finished_at / 1e9, times[-1]))
            channels.append(channels[-1])
        tokens = np.diff(np.array([0, *running], dtype=np.float64))
    else:
        tokens = np.full(len(chunks), (output or 0) / max(1, len(chunks)))
    return np.array(times), tokens, np.array(channels, dtype=np.int8), counted


def _error_of(event: Mapping[str, Any]) -> str | None:
    """What an error event inside a stream that began with 200 says."""
    error = event.get("error")
    if not error:
        return None
    return "error in the stream: " + server_message(json.dumps({"error": error}))


def _failure(record: Mapping[str, Any], finish: str | None, output: int | None) -> str | None:
    """Why a request without an error event is none that finished."""
    error, status = record.get("error") or {}, record.get("status")
    if status is not None and not 200 <= status < 300:
        return f"{status}: {server_message(str(error.get('message', '')))}"
    if finish is None:
        if status is None or not record["responses"]:
            return f"no answer: {server_message(str(error.get('message') or error.get('type') or 'cancelled'))}"
        return "the stream broke off before its finish"
    return None if output is not None else "no usage in the answer"
