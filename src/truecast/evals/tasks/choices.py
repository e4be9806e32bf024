"""GPQA Diamond: four choices, in the order and the words of NeMo-Skills after Artificial Analysis.

The data set is gated and its authors ask that questions are not shown in the open: the user brings it (the released CSV,
or the hub after its terms were accepted) and nothing of it is kept here.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState

from truecast.evals.content import content_of
from truecast.evals.tasks.boxed import last_boxed
from truecast.evals.tasks.data import Row, checked, from_file, from_hub, id_of, text_of
from truecast.evals.tasks.definition import Definition, answer_once, greedy_first
from truecast.evals.tasks.prompt import prompt_of

NAME = "gpqa-diamond"
HUB, SUBSET = "Idavidrein/gpqa", "gpqa_diamond"
WRONG = tuple(f"Incorrect Answer {n}" for n in (1, 2, 3))
FORM = '"Question", "Correct Answer" and "Incorrect Answer 1" to "3", as in gpqa_diamond.csv'
MAX_TOKENS = 65_536
ORDER_SEED = 42
"""Choices are shuffled row by row with this seed, the correct one last before: NeMo-Skills' order."""

_SAID = re.compile(r"(?i)[*_]{0,2}Answer[*_]{0,2}\s*:[\s*_]{0,2}\s*([A-Z])(?![a-zA-Z0-9])")
_PHRASE = re.compile(r"The final answer is (.+)$")
_LETTER = re.compile(r"\b[A-Z]\b")
_SIGNS = (
    "\u0623\u0628\u062c\u062f",  # Arabic
    "\u0985\u09ac\u09a1\u09a2",  # Bengali
    "\uff21\uff22\uff23\uff24",  # full width
)
_LATIN = {ord(sign): f" {letter}" for signs in _SIGNS for sign, letter in zip(signs, "ABCD", strict=True)}
"""Letters that Arabic, Bengali and Japanese replies name choices by."""


def gpqa_diamond(data: Path | None, prompt: Path | None) -> Definition:
    """The task. Raises: InputError where data or prompt cannot be had, or a row is not as it must be."""
    rows = from_file(data) if data is not None else from_hub(HUB, "train", SUBSET, FORM)
    words, order = prompt_of("mcq-4choices", prompt), random.Random(ORDER_SEED)
    samples = []
    for number, row in enumerate(rows.rows):
        problem, letter = _question(row, number, rows.source, order)
        samples.append(Sample(id=id_of(row, number, NAME), input=words.messages(problem=problem), target=letter))
    checked([str(sample.id) for sample in samples], rows.source)
    identity = {"name": NAME, "data": rows.identity, "prompt": words.identity, "rules": "NeMo-Skills multichoice"}
    return Definition(NAME, identity, samples, answer_once, letter_said, greedy_first, 1, MAX_TOKENS)


def _question(row: Row, number: int, source: str, order: random.Random) -> tuple[str, str]:
    right = _tidied(text_of(row, number, source, "Correct Answer"))
    choices = [_tidied(text_of(row, number, source, name)) for name in WRONG] + [right]
    order.shuffle(choices)
    listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    question = text_of(row, number, source, "Question").strip("\n")
    return f"{question}\n\n{listed}", "ABCD"[choices.index(right)]


def _tidied(text: str) -> str:
    return text.strip().replace(" [title]", ". ").replace("  ", " ")


def letter_of(reply: str) -> str | None:
    """The letter that a reply settles on: in a phrase or a box, else the last line that says ``Answer: X``."""
    phrases = _PHRASE.findall(reply)
    said = (phrases[-1] if phrases else last_boxed(reply) or "").translate(_LATIN).strip()
    if len(said) == 1:
        return said.upper()
    if said and (found := _LETTER.findall(said)):
        return str(found[-1])
    answers = _SAID.findall(reply)
    return str(answers[-1]).upper() if answers else None


@scorer(metrics=[accuracy()])
def letter_said() -> Scorer:
    """Right if the reply settles on the target's letter."""

    async def score(state: TaskState, target: Target) -> Score:
        letter = letter_of(content_of(state.output))
        return Score(value=letter == target.text, answer=letter)

    return score
