"""What a task is to a run: its problems, how they are asked and scored, and how answers to them are sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inspect_ai.dataset import Sample
from inspect_ai.scorer import Scorer
from inspect_ai.solver import Solver, generate

Sampling = Mapping[str, float]
"""``temperature`` and ``top_p``; what is not in it is left to the server."""

GREEDY: Sampling = {"temperature": 0.0}
REASONING: Sampling = {"temperature": 1.0, "top_p": 0.95}
"""What Kimi-K3's own service uses."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A task with its data, ready to run.

    ``identity`` goes into the record and must be equal where two runs are compared: data and prompt by their hashes.
    ``sampling``: of each seed from 0 on. ``samples``: how many answers a problem is given. ``max_tokens``: of one reply.
    ``parts``: a score may be a mapping, each entry of which is a problem, and the sample the cluster of these.
    ``sandbox``: where inspect runs code that the model wrote.
    """

    name: str
    identity: Mapping[str, Any]
    dataset: Sequence[Sample]
    solver: Callable[[], Solver | Sequence[Solver]]
    scorer: Callable[[], Scorer | Sequence[Scorer]]
    sampling: Callable[[int], Sampling]
    samples: int
    max_tokens: int
    parts: bool = False
    sandbox: Any = None


def always(sampling: Sampling) -> Callable[[int], Sampling]:
    """The same for every seed."""
    return lambda seed: sampling


def greedy_first(seed: int) -> Sampling:
    """Greedy for seed 0, then temperature 0.6 and top_p 0.95: the NeMo-Skills runs of the NVFP4 model card."""
    return GREEDY if seed == 0 else {"temperature": 0.6, "top_p": 0.95}


def answer_once() -> Solver:
    """One reply, and a call in it is not carried out: none of these tasks has tools."""
    return generate(tool_calls="none")
