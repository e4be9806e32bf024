"""Any task that inspect knows: ``package/task`` or ``file.py[@task]``, with its own prompt, data and scorer."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai._eval.loader import create_tasks, load_tasks
from inspect_ai.dataset import Dataset
from inspect_ai.solver import Solver

from truecast.errors import InputError
from truecast.evals.tasks.definition import GREEDY, Definition, always
from truecast.evals.tasks.prompt import prompt_of
from truecast.evals.tasks.steps import FIELDS, in_steps

MAX_TOKENS = 65_536
SCICODE = "inspect_evals/scicode"
_KNOWN = "truecast's own: aime, hmmt, gpqa-diamond, ifbench, scicode, dialogues; others: package/task or file.py@task"


def scicode(arguments: Mapping[str, Any], prompt: Path | None = None) -> Definition:
    """SciCode as the package inspect-evals has it: test split, background in the prompt, greedy, code run in Docker.

    ``prompt``: one of NeMo-Skills, and each step is asked by itself as there. A problem is a sub-problem, its cluster the
    main one. Raises: InputError where the package is not installed, or the prompt is none.
    """
    words = prompt_of(SCICODE, prompt, FIELDS) if prompt is not None else None
    if importlib.util.find_spec("inspect_evals") is None:
        raise InputError(
            "the task scicode needs the package inspect_evals", fix="pip install inspect-evals, and Docker"
        )
    found = other(SCICODE, {"provide_scientific_background": True, **arguments})
    found = replace(found, name="scicode", sampling=always(GREEDY), max_tokens=MAX_TOKENS)
    return found if words is None else in_steps(found, words)


def other(name: str, arguments: Mapping[str, Any]) -> Definition:
    """The task. Its first score counts; where that is a mapping, each entry is a problem of the sample's cluster.

    Raises: InputError where inspect cannot load it.
    """
    task = _loaded(name, arguments)
    samples = list(task.dataset) if isinstance(task.dataset, Dataset) else []
    if not samples:
        raise InputError("has no data set that is known beforehand", where=name)
    for number, sample in enumerate(samples, 1):
        sample.id = sample.id if sample.id is not None else number
    text = "\n".join(json.dumps([s.id, s.input, s.target], default=str, ensure_ascii=False) for s in samples)
    data = {"rows": len(samples), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    own = {k: v for k in ("temperature", "top_p") if (v := getattr(task.config, k)) is not None}
    setup: Sequence[Solver] = task.setup if isinstance(task.setup, Sequence) else [task.setup] if task.setup else []
    return Definition(
        name=task.name.replace("/", "_"),
        identity={"name": task.name, "version": task.version, "arguments": dict(arguments), "data": data},
        dataset=samples,
        solver=lambda: [*setup, task.solver],
        scorer=lambda: task.scorer or [],
        sampling=always(own),
        samples=1,
        max_tokens=task.config.max_tokens or MAX_TOKENS,
        parts=True,
        sandbox=task.sandbox,
    )


def _loaded(name: str, arguments: Mapping[str, Any]) -> Task:
    file, _, inner = name.partition("@")
    path = Path(file).resolve()
    try:
        if not path.is_file():
            tasks = load_tasks([name], dict(arguments))
        elif inner:
            tasks = create_tasks([f"{path}@{inner}"], dict(arguments))
        else:
            tasks = create_tasks([path.name], dict(arguments), path.parent)
    except Exception as error:  # the task's own code runs here, and its data may be fetched
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(f"cannot be loaded by inspect: {line}", where=name, fix=_KNOWN) from None
    if not tasks:
        raise InputError("is no task", where=name, fix=_KNOWN)
    if len(tasks) > 1:
        raise InputError(f"is {len(tasks)} tasks", where=name, fix="name one as file.py@task")
    return tasks[0]
