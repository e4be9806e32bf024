"""Asking a server for log-probabilities, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


class ServerError(Exception):
    """The server is gone, late, or answered with an error."""


@dataclass
class Prompts:
    """``scored``: documents whose every token but the first is scored. ``full``: short ones, for which the whole
    distribution is asked. ``asked``: prompts for greedy answers of ``new`` tokens."""

    scored: list[list[int]]
    full: list[list[int]]
    asked: list[list[int]]
    new: int


@dataclass
class Scores:
    """Log-probabilities of each document's tokens from the second on; the greedy answers; ``full[d][t][v]``."""

    scored: list[list[float]] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    full: list[list[list[float]]] = field(default_factory=list)
    first_seconds: float = 0.0
    accepted: float | None = None

    def same_bits(self, other: Scores) -> bool:
        """Do all of both agree? (JSON keeps a float32 exactly.)"""
        return self.scored == other.scored and self.answers == other.answers

    def document(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)


def post(base: str, path: str, body: dict[str, Any], timeout: float) -> Any:
    """One request. Raises: ServerError."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=max(timeout, 1.0)) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ServerError(f"HTTP {error.code}: {error.read(400).decode(errors='replace')}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerError(f"no answer: {error}") from error


def wait(base: str, alive: Callable[[], bool], deadline: float) -> None:
    """Until the server lists its model (``/health`` would run a generation). Raises: ServerError."""
    while True:
        try:
            with urllib.request.urlopen(base + "/model_info", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (OSError, http.client.HTTPException):
            pass
        if not alive():
            raise ServerError("the server ended before it was ready")
        if time.time() > deadline:
            raise ServerError("not ready in time")
        time.sleep(0.25)


def _generate(base: str, tokens: Sequence[int], new: int, deadline: float, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    body = {"input_ids": list(tokens), "sampling_params": sampling, **more}
    answer: dict[str, Any] = post(base, "/generate", body, deadline - time.time())
    return answer


def document(base: str, tokens: Sequence[int], deadline: float) -> list[float]:
    """Log-probability of each token from the second on."""
    meta = _generate(base, tokens, 1, deadline, return_logprob=True, logprob_start_len=0)["meta_info"]
    entries = meta["input_token_logprobs"]
    if [e[1] for e in entries] != list(tokens):
        raise ServerError("scored other tokens than were sent")
    return [e[0] for e in entries[1:]]


def distribution(base: str, tokens: Sequence[int], vocabulary: int, deadline: float) -> list[list[float]]:
    """``[T - 1][V]`` log-probabilities of what follows each token but the last."""
    more = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": vocabulary}
    meta = _generate(base, tokens, 1, deadline, **more)["meta_info"]
    rows = []
    for top in meta["input_top_logprobs"][1:]:
        row = [float("-inf")] * vocabulary
        for value, token, *_ in top:
            row[token] = value
        rows.append(row)
    return rows


def greedy(base: str, tokens: Sequence[int], new: int, deadline: float) -> tuple[list[int], dict[str, Any]]:
    """Greedy answer, and what the server tells about it."""
    answer = _generate(base, tokens, new, deadline)
    return answer["output_ids"][-new:], answer["meta_info"]


def score(
    base: str, prompts: Prompts, vocabulary: int, deadline: float, *, draft: bool = False, full: bool = True
) -> Scores:
    """All of it, one request at a time, so that no batch differs between servers. ``draft``: answers alone."""
    scores, start = Scores(), time.time()
    if not draft:
        for i, tokens in enumerate(prompts.scored):
            scores.scored.append(document(base, tokens, deadline))
            if i == 0:
                scores.first_seconds = time.time() - start
    drafted = steps = 0
    for i, tokens in enumerate(prompts.asked):
        answer, meta = greedy(base, tokens, prompts.new, deadline)
        scores.answers.append(answer)
        if draft and i == 0:
            scores.first_seconds = time.time() - start
        drafted, steps = drafted + meta.get("completion_tokens", 0), steps + meta.get("spec_verify_ct", 0)
    if steps:
        scores.accepted = drafted / steps
    if full and not draft:
        scores.full = [distribution(base, tokens, vocabulary, deadline) for tokens in prompts.full]
    return scores
