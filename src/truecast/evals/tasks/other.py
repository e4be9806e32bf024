"""Any task that inspect knows: ``package/task`` or ``file.py[@task]``, with its own prompt, data and scorer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai._eval.loader import create_tasks, load_tasks
from inspect_ai.dataset import Dataset

from truecast.errors import InputError
from truecast.evals.tasks.definition import Definition, always


def other(name: str, arguments: Mapping[str, Any]) -> Definition:
    """The task. Its first score counts; where that is a mapping, each entry is a problem of the sample's cluster.

    Raises: InputError where inspect cannot load it.
    """
    task = _loaded(name, arguments)
    dataset = task.dataset
    if not isinstance(dataset, Dataset) or len(dataset) == 0:
        raise InputError("has no data set that is known beforehand", where=name)
    samples = list(dataset)
    for number, sample in enumerate(samples, 1):
        sample.id = sample.id if sample.id is not None else number
    text = "\n".join(json.dumps([s.id, s.input, s.target], default=str, ensure_ascii=False) for s in samples)
    identity = {
        "name": task.name,
        "version": task.version,
        "arguments": dict(arguments),
        "data": {"rows": len(samples), "sha256": hashlib.sha256(text.encode()).hexdigest()},
    }
    solver = [task.setup, task.solver] if task.setup is not None else task.solver
    own = {k: v for k in ("temperature", "top_p") if (v := getattr(task.config, k)) is not None}
    return Definition(
        task.name.replace("/", "_"),
        identity,
        samples,
        lambda: solver,  # type: ignore[arg-type, return-value]
        lambda: task.scorer or [],
        always(own),
        1,
        task.config.max_tokens or 65_536,
        parts=True,
        sandbox=task.sandbox,
    )


def _loaded(name: str, arguments: Mapping[str, Any]) -> Task:
    file, at, inner = name.partition("@")
    path = Path(file).resolve()
    try:
        if path.is_file():
            tasks = create_tasks([f"{path.name}{at}{inner}"], dict(arguments), path.parent)
        else:
            tasks = load_tasks([name], dict(arguments))
    except Exception as error:  # the task's own code runs here, and its data may be fetched
        line = next(iter(str(error).splitlines()), type(error).__name__)
        fix = "truecast's own: aime, hmmt, gpqa-diamond, ifbench, scicode, dialogues; others as package/task or file.py@task"
        if not path.exists() and "/" not in name:
            raise InputError("is no task", where=name, fix=fix) from None
        raise InputError(f"cannot be loaded by inspect: {line}", where=name) from None
    if len(tasks) != 1:
        raise InputError(f"is {len(tasks)} tasks", where=name, fix="name one as file.py@task")
    return tasks[0]
