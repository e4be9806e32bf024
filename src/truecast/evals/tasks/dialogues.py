"""Dialogue items with tools and both modes of thinking, such as nano-K3's held-out ones: one JSON object a line,

    {"id", "messages", "tools" or null, "thinking": bool, "effort": "low"|"high"|"max"|null, "expect": {...}}

as in OpenAI's chat API; what ``expect`` may hold is in :mod:`truecast.evals.tasks.dialogue_rules`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inspect_ai.dataset import Sample
from inspect_ai.model import ContentReasoning, GenerateConfig, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from truecast.errors import InputError
from truecast.evals.content import content_of
from truecast.evals.tasks.data import Row, checked, from_file
from truecast.evals.tasks.definition import REASONING, Definition, always
from truecast.evals.tasks.dialogue_rules import VERSION, Answer, fault_of, wrong

NAME = "dialogues"
SAMPLES, MAX_TOKENS = 8, 200


def dialogues(data: Path | None) -> Definition:
    """The task. Raises: InputError without a file, or for an item that is not as it must be."""
    if data is None:
        raise InputError(
            f"the task {NAME} has no data of its own", fix="give --data FILE, one item a line: docs/eval.md"
        )
    rows = from_file(data)
    samples = [_sample(row, f"{rows.source}, row {number + 1}") for number, row in enumerate(rows.rows)]
    checked([str(sample.id) for sample in samples], rows.source)
    identity = {"name": NAME, "data": rows.identity, "rules": VERSION}
    return Definition(NAME, identity, samples, ask, as_expected, always(REASONING), SAMPLES, MAX_TOKENS)


def _sample(row: Row, where: str) -> Sample:
    expect = row.get("expect")
    if fault := fault_of(expect):
        raise InputError(fault, where=where)
    if not isinstance(row.get("id"), str) or not isinstance(row.get("thinking"), bool):
        raise InputError("id is no text, or thinking neither true nor false", where=where)
    messages, tools = row.get("messages"), row.get("tools")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise InputError("messages is no list of objects", where=where)
    if tools is not None and not isinstance(tools, list):
        raise InputError("tools is no list", where=where)
    asked = {"thinking": row["thinking"], "effort": row.get("effort"), "expect": expect}
    shown = str(messages[-1].get("content") or "")
    return Sample(id=row["id"], input=shown, metadata={**asked, "messages": messages, "tools": tools})


@solver
def ask() -> Solver:
    """One reply to the dialogue, sent as the item has it; calls are looked at, not carried out."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        asked = state.metadata
        body: dict[str, Any] = {"messages": asked["messages"], "chat_template_kwargs": {"thinking": asked["thinking"]}}
        if asked["effort"]:
            body["reasoning_effort"] = asked["effort"]
        if asked["tools"]:
            body["tools"] = asked["tools"]
        state.output = await get_model().generate(state.messages, config=GenerateConfig(extra_body=body))
        return state

    return solve


@scorer(metrics=[accuracy()])
def as_expected() -> Scorer:
    """Right if the answer is what the item expects, in the channel and mode that it asks for."""

    async def score(state: TaskState, target: Target) -> Score:
        message, content = state.output.message, content_of(state.output)
        reasoning = (
            ""
            if isinstance(message.content, str)
            else "".join(part.reasoning for part in message.content if isinstance(part, ContentReasoning))
        )
        calls = [
            (call.function, f"{call.arguments}" if call.parse_error else json.dumps(call.arguments))
            for call in message.tool_calls or ()
        ]
        finished = state.output.stop_reason in ("stop", "tool_calls")
        fault = wrong(state.metadata, Answer(content, reasoning, calls, finished))
        said = [content, *(f"{name}({arguments})" for name, arguments in calls)]
        return Score(value=not fault, answer="\n".join(filter(None, said)) or None, explanation=fault or None)

    return score
