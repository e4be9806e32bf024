"""One run on inspect: a task for each seed, all at once, each finished sample handed on as it comes."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.hooks import Hooks, RunEnd, SampleEnd, TaskStart, hooks
from inspect_ai.log import EvalSample
from inspect_ai.model import GenerateConfig, Model, get_model
from inspect_ai.solver import Solver

from truecast.evals.gate import Gate, pass_through
from truecast.evals.tasks.definition import Definition

RETRIES = 4
"""Times a request is sent again after 429, 5xx or a broken connection; inspect waits about 3, 6, 12 and 24 s before."""
_SEED = "truecast_seed"
Finished = Callable[[EvalSample, int], bool]
"""Told a sample and its seed; says whether it was answered."""


@dataclass(frozen=True, slots=True)
class Server:
    """``url`` ends where ``/chat/completions`` follows. ``concurrency``: requests at once. ``seconds``: for one reply."""

    url: str
    model: str
    key: str = ""
    concurrency: int = 16
    seconds: float = 7200.0

    def opened(self) -> Model:
        """Inspect's model for it. The client's own retries are off: inspect retries, and says so."""
        return get_model(
            f"openai-api/truecast/{self.model}",
            base_url=self.url,
            api_key=self.key or "none",
            config=GenerateConfig(max_connections=self.concurrency, max_retries=RETRIES),
            memoize=False,
            client_timeout=self.seconds,
            max_retries=0,
        )


def run(
    definition: Definition,
    pending: Mapping[int, Sequence[Sample]],
    settings: Mapping[int, Mapping[str, Any]],
    server: Server,
    logs: Path,
    finished: Finished,
) -> bool:
    """Ask ``pending`` (by seed), with ``settings`` of each seed. Returns whether it was interrupted."""
    gate = Gate(max(8, 2 * server.concurrency))

    def heard(sample: EvalSample, seed: int) -> None:
        gate.saw(failed=not finished(sample, seed))

    tasks = [_task(definition, seed, samples, settings[seed], gate) for seed, samples in pending.items() if samples]
    for name in ("INSPECT_EVAL_MODEL", "INSPECT_LOG_DIR"):
        os.environ.pop(name, None)
    _Heard.told = heard
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # inspect tells of its hooks
            _Heard.model = model = server.opened()
            done = eval(
                tasks,
                model=model,
                log_dir=str(logs),
                max_tasks=len(tasks),
                max_samples=server.concurrency,
                display="none",
                log_level="error",
                log_realtime=False,
                fail_on_error=False,
                ctl_server=False,
                score_display=False,
            )
    finally:
        _Heard.told, _Heard.model = None, None
    # after Ctrl-C inspect returns without the logs of what it stopped
    return len(done) < len(tasks) or any(log.status == "cancelled" for log in done)


def _task(
    definition: Definition, seed: int, samples: Sequence[Sample], settings: Mapping[str, Any], gate: Gate
) -> Task:
    solver = definition.solver()
    steps: list[Solver] = [pass_through(gate), *(solver if isinstance(solver, list) else [solver])]
    return Task(
        name=f"{definition.name}-seed{seed}",
        dataset=MemoryDataset([sample.model_copy(deep=True) for sample in samples]),
        solver=steps,
        scorer=definition.scorer(),
        config=GenerateConfig(seed=seed, **settings),
        sandbox=definition.sandbox,
        metadata={_SEED: seed},
    )


@hooks(name="truecast", description="keeps each answer of truecast eval as it comes")
class _Heard(Hooks):
    told: Callable[[EvalSample, int], None] | None = None
    model: Model | None = None

    def __init__(self) -> None:
        self._seeds: dict[str, int] = {}

    def enabled(self) -> bool:
        return type(self).told is not None

    async def on_task_start(self, data: TaskStart) -> None:
        self._seeds[data.eval_id] = int((data.spec.metadata or {}).get(_SEED, 0))

    async def on_sample_end(self, data: SampleEnd) -> None:
        told = type(self).told
        if told is not None:
            told(data.sample, self._seeds[data.eval_id])

    async def on_run_end(self, data: RunEnd) -> None:
        """Close the connections while the loop that they belong to is running."""
        if (model := type(self).model) is not None:
            await model.api.aclose()
