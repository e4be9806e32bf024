"""SciCode as NeMo-Skills asks it: each step by itself, with the descriptions of the earlier ones and the code given to them.

The task underneath (data, tests, sandbox) is that of inspect-evals; here are only the order of asking and what is sent. Three
steps are not asked and not scored but given, as in SciCode's own harness: 288 of the test split's 291 remain. Source:
NeMo-Skills, nemo_skills/inference/eval/scicode.py and scicode_utils.py (2026).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inspect_ai.model import ChatMessageAssistant, get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from truecast.errors import InputError
from truecast.evals.content import content_of
from truecast.evals.tasks.data import packaged
from truecast.evals.tasks.definition import Definition
from truecast.evals.tasks.prompt import Prompt

FIELDS = ("problem_steps_str", "next_step_str", "dependencies")
"""What a prompt of NeMo-Skills for SciCode has places for."""
GIVEN = frozenset({"13.6", "62.1", "76.3"})
PACKAGE = "scicode"
"""Of nvidia-scicode, NVIDIA's build of SciCode; it holds the code of the given steps."""

_IMPORT = re.compile(r"^\s*(?:import .*|from .*\s+import\s+.*)", re.MULTILINE)
_NAME = re.compile(r"\bdef\s+(\w+)\s*\(")


def in_steps(task: Definition, prompt: Prompt) -> Definition:
    """``task`` (samples with ``sub_steps``, a score for each) asked by ``prompt``, which has places for :data:`FIELDS`.

    Raises: InputError where the code of a given step is not here.
    """
    steps = [step for sample in task.dataset for step in (sample.metadata or {})["sub_steps"]]
    given = {step["step_number"]: _given(step) for step in steps if step["step_number"] in GIVEN}
    return replace(
        task,
        identity={**task.identity, "prompt": prompt.identity, "rules": "NeMo-Skills SciCode, each step by itself"},
        solver=lambda: each_step(prompt, given),
        scorer=lambda: asked_steps(task.scorer()),
    )


def _given(step: Mapping[str, Any]) -> str:
    """The function that the step's header names, from the file of the package."""
    name, path = _NAME.search(step["function_header"]), packaged(PACKAGE, f"data/{step['step_number']}.txt")
    if path is None or name is None:
        raise InputError(
            f"the code of step {step['step_number']} of SciCode, which is not asked, is not here",
            fix="pip install --no-deps nvidia-scicode",
        )
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name[1])


@solver
def each_step(prompt: Prompt, given: Mapping[str, str]) -> Solver:
    """Ask step by step. The dialogue that the scorer reads holds one message a step: its code alone, in a fence."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        done: list[str] = []
        for step in state.metadata["sub_steps"]:
            code = given.get(step["step_number"])
            if code is None:
                state.output = await get_model().generate(prompt.messages(**asked(state.metadata, done)))
                code = script(content_of(state.output))
            done.append(code)
            state.messages.append(ChatMessageAssistant(content=f"```python\n{code}\n```"))
        return state

    return solve


def asked(problem: Mapping[str, Any], done: Sequence[str]) -> dict[str, str]:
    """Values of :data:`FIELDS` for the step after those whose code is ``done``."""
    steps = problem["sub_steps"]
    earlier = [f"{_described(step)}\n\n{code}" for step, code in zip(steps, done, strict=False)]
    step = steps[len(done)]
    following = "\n\n".join((_described(step), step["function_header"], step["return_line"]))
    return dict(zip(FIELDS, ("\n\n------\n\n".join(earlier), following, problem["required_dependencies"]), strict=True))


def _described(step: Mapping[str, Any]) -> str:
    return f"{step['step_description_prompt']}\n{step['step_background']}"


def script(reply: str) -> str:
    """The code of a reply: its first fence for Python, else its first fence, else all of it; without imports."""
    for opening in ("```python", "```"):
        _, found, rest = reply.partition(opening)
        if found:
            reply = rest.partition("```")[0]
            break
    return _IMPORT.sub("", reply)


@scorer(metrics=[mean()])
def asked_steps(scorers: Scorer | Sequence[Scorer]) -> Scorer:
    """The task's own scores, without those of given steps."""
    own = scorers[0] if isinstance(scorers, Sequence) else scorers

    async def score(state: TaskState, target: Target) -> Score | None:
        found = await own(state, target)
        if found is None or not isinstance(found.value, dict):
            return found
        return found.model_copy(update={"value": {k: v for k, v in found.value.items() if k not in GIVEN}})

    return score
