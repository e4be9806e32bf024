"""From the name on the command line to a task with its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from truecast.errors import UsageError
from truecast.evals.tasks.choices import gpqa_diamond
from truecast.evals.tasks.contests import contests, is_contests
from truecast.evals.tasks.definition import Definition
from truecast.evals.tasks.dialogues import dialogues
from truecast.evals.tasks.ifbench import ifbench
from truecast.evals.tasks.other import other, scicode


def find_task(
    name: str, data: Sequence[Path] = (), prompt: Path | None = None, arguments: Mapping[str, Any] | None = None
) -> Definition:
    """``name`` as docs/eval.md lists them; ``arguments`` are of scicode and tasks of inspect alone.

    Raises: UsageError for an option that the task does not have; InputError where its data cannot be had.
    """
    if is_contests(name):
        _none(name, arguments, "--arg")
        return contests(name, data, prompt)
    one = data[0] if data else None
    if len(data) > 1:
        raise UsageError(f"{name} takes one file", where="--data")
    if name == "gpqa-diamond":
        _none(name, arguments, "--arg")
        return gpqa_diamond(one, prompt)
    if name == "scicode":
        _none(name, data, "--data")
        return scicode(arguments or {}, prompt)
    _none(name, prompt, "--prompt")
    if name in ("ifbench", "dialogues"):
        _none(name, arguments, "--arg")
        return ifbench(one) if name == "ifbench" else dialogues(one)
    _none(name, data, "--data")
    return other(name, arguments or {})


def _none(name: str, given: object, option: str) -> None:
    if given:
        raise UsageError(f"the task {name} has no {option}", where=option)
