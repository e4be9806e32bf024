"""AIME and HMMT: a problem each, and an answer in the last box of the reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState

from truecast.errors import InputError
from truecast.evals.content import content_of
from truecast.evals.tasks.boxed import equal, last_boxed
from truecast.evals.tasks.data import Rows, checked, from_file, from_hub, id_of, packaged, text_of
from truecast.evals.tasks.definition import REASONING, Definition, always, answer_once
from truecast.evals.tasks.prompt import FOLDER, PACKAGE, prompt_of

FORM = '"problem" and "answer" (or "expected_answer")'
MAX_TOKENS, SAMPLES = 65_536, 8


@dataclass(frozen=True, slots=True)
class Contest:
    """``hub``: data set on the hub. ``packaged``: it ships in sgl-eval. ``whole``: answers are whole, 0 to 999."""

    hub: str
    whole: bool
    packaged: bool = False


CONTESTS = {
    "aime24": Contest("MathArena/aime_2024", True, True),
    "aime25": Contest("MathArena/aime_2025", True, True),
    "aime26": Contest("MathArena/aime_2026", True, True),
    "hmmt_feb25": Contest("MathArena/hmmt_feb_2025", False),
    "hmmt_feb26": Contest("MathArena/hmmt_feb_2026", False),
}
LATEST = {"aime": "aime26", "hmmt": "hmmt_feb26"}


def is_contests(task: str) -> bool:
    """Is it a contest, or several joined by ``+``?"""
    return all(name in CONTESTS or name in LATEST for name in task.split("+"))


def contests(task: str, data: Sequence[Path], prompt: Path | None) -> Definition:
    """The problems of one contest, or of several joined by ``+`` as one task. ``data``: a file each, or none.

    Raises: InputError where data or prompt cannot be had, or a row is not as it must be.
    """
    names = [LATEST.get(name, name) for name in task.split("+")]
    words = prompt_of("math", prompt)
    if data and len(data) != len(names):
        raise InputError(f"{len(data)} files for {len(names)} contests", where="--data", fix="give one a contest")
    found = [_rows(name, data[at] if data else None) for at, name in enumerate(names)]
    samples = [
        _sample(name, rows.source, number, text_of(row, number, rows.source, "problem", "question"), row)
        for name, rows in zip(names, found, strict=True)
        for number, row in enumerate(rows.rows)
    ]
    for sample in samples:
        sample.input = words.messages(problem=str(sample.input))
    checked([str(sample.id) for sample in samples], " and ".join(rows.source for rows in found))
    sources = {name: rows.identity for name, rows in zip(names, found, strict=True)}
    name = "+".join(names)
    identity = {"name": name, "data": sources, "prompt": words.identity, "rules": "NeMo-Skills math"}
    return Definition(name, identity, samples, answer_once, boxed_answer, always(REASONING), SAMPLES, MAX_TOKENS)


def _rows(name: str, data: Path | None) -> Rows:
    if data is None and CONTESTS[name].packaged:
        data = packaged(PACKAGE, f"{FOLDER}/dataset/{name}/test.txt")
    return from_file(data) if data is not None else from_hub(CONTESTS[name].hub, "train", None, FORM)


def _sample(name: str, source: str, number: int, problem: str, row: object) -> Sample:
    assert isinstance(row, dict)
    answer = text_of(row, number, source, "answer", "expected_answer")
    if CONTESTS[name].whole and not re.fullmatch(r"\d{1,3}", answer.strip()):
        raise InputError(f"answer {answer!r} is no whole number from 0 to 999", where=f"{source}, row {number + 1}")
    return Sample(id=id_of(row, number, name), input=problem, target=answer)


@scorer(metrics=[accuracy()])
def boxed_answer() -> Scorer:
    """Right if the last box of the reply equals the target."""

    async def score(state: TaskState, target: Target) -> Score:
        given = last_boxed(content_of(state.output))
        return Score(value=equal(target.text, given), answer=given)

    return score
