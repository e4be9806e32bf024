"""What one run of one problem came to, read from inspect's sample: right or wrong, cut off, empty, tokens, or an error.

A request that failed after its retries, a prompt longer than the context, a filter, a finish reason that says nothing and
a scorer that failed are errors: they are counted apart and never scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from inspect_ai.event import ModelEvent
from inspect_ai.log import EvalSample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Score, value_to_float

from truecast.evals.content import content_of

_TOO_LONG, _FILTERED, _UNKNOWN = "model_length", "content_filter", "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """One scored answer. ``correct``: 0 to 1. ``measures``: name -> how many of how many, for other ways to count.

    ``truncated``: some reply ended because the token budget did. ``empty``: nothing but reasoning came.
    ``tokens``: output tokens, reasoning among them; None where the server does not count. ``most``: those of the longest
    reply, which is what the budget bounds.
    """

    problem: str
    correct: float
    truncated: bool
    empty: bool
    tokens: int | None
    most: int | None
    answer: str | None = None
    measures: Mapping[str, Sequence[int]] = field(default_factory=dict)


def kept_answer(entry: Mapping[str, Any]) -> Answer:
    """An answer as it was kept. Raises: ValueError or TypeError where the entry is none."""
    answer = Answer(**entry)
    share = isinstance(answer.correct, (int, float)) and 0 <= answer.correct <= 1
    flags = isinstance(answer.truncated, bool) and isinstance(answer.empty, bool)
    counts = all(n is None or (type(n) is int and n > 0) for n in (answer.tokens, answer.most))
    texts = isinstance(answer.problem, str) and isinstance(answer.answer, (str, NoneType))
    pairs = [len(p) == 2 and all(isinstance(n, int) for n in p) for p in answer.measures.values()]
    if not (share and flags and counts and texts and all(pairs)):
        raise ValueError("is no answer")
    return answer


def models_of(sample: EvalSample) -> list[str]:
    """What the replies to a sample call the model that wrote them, each name once."""
    outputs = [event.output for event in sample.events if isinstance(event, ModelEvent) and event.error is None]
    return list(dict.fromkeys(output.model for output in outputs if output.model))


def answers_of(sample: EvalSample, parts: bool = False) -> list[Answer] | str:
    """The answers of a finished sample, or why it has none.

    ``parts``: the score is a mapping, each entry of which is a problem answered by one reply, in the order of the replies.
    """
    events = [event for event in sample.events if isinstance(event, ModelEvent)]
    if sample.error is not None:
        if events and events[-1].error is None:
            return f"the reply cannot be read or scored: {_first_line(sample.error.message)}"
        return _first_line((events[-1].error if events else None) or sample.error.message)
    replies = [event.output for event in events if event.error is None]
    replies = replies or [sample.output]
    for reply in replies:
        if reply.stop_reason == _TOO_LONG:
            return f"the prompt does not fit: {_first_line(reply.completion)}"
        if reply.stop_reason == _FILTERED:
            return f"a filter of the server ended it: {_first_line(reply.completion)}"
        if reply.stop_reason == _UNKNOWN or not reply.choices:
            return "the server did not say why the answer ended (finish_reason)"
    score = _first_score(sample)
    if isinstance(score, str):
        return score
    if parts and isinstance(score.value, dict):
        if len(score.value) != len(replies):
            return f"{len(replies)} replies for {len(score.value)} parts"
        pairs = zip(score.value.items(), replies, strict=True)
        return [_answer(str(name), float(value), [reply], None, {}) for (name, value), reply in pairs]
    correct = _correct(score)
    if isinstance(correct, str):
        return correct
    return [_answer(str(sample.id), correct, replies, score.answer, (score.metadata or {}).get("measures", {}))]


def _first_score(sample: EvalSample) -> Score | str:
    scores = list((sample.scores or {}).values())
    return scores[0] if scores else "no score"


def _correct(score: Score) -> float | str:
    value = score.value
    if isinstance(value, dict | list):
        return f"the score is no number but {_first_line(repr(value))}"
    number = value_to_float()(value)
    return number if 0 <= number <= 1 else f"the score {number:g} is no share from 0 to 1"


def _answer(
    problem: str, correct: float, replies: Sequence[ModelOutput], answer: str | None, measures: Mapping[str, Any]
) -> Answer:
    counts = [reply.usage.output_tokens if reply.usage is not None else None for reply in replies]
    known = [count for count in counts if count is not None and count > 0]
    whole = len(known) == len(counts)
    last = replies[-1]
    return Answer(
        problem,
        correct,
        any(reply.stop_reason == "max_tokens" for reply in replies),
        not content_of(last).strip() and not last.message.tool_calls,
        sum(known) if whole else None,
        max(known) if whole else None,
        answer,
        measures,
    )


def _first_line(text: str, most: int = 300) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return line if len(line) <= most else f"{line[: most - 3]}..."
