"""Ranks that wait for each other after loading: as long as the user says, and an error that names who is missing.

SGLang waits 480 s whatever the checkpoint (on rank 0; the others wait for rank 0 as long as gloo does), and then says
"other ranks". Here
``SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S`` sets the time, and each rank notes how far it got in the store through which
the ranks met: those who wait look there, and say which rank is missing and what it did last.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from truecast.engines.sglang.choice import seconds
from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import function

VARIABLE = "SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S"
MODULE = "sglang.srt.model_executor.model_runner_components.load_model_utils"
BARRIER = "dist_barrier_after_load"
CONSTANT = "UNBALANCED_MODEL_LOADING_TIMEOUT_S"
LOADER = "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator"
EVERY = 2.0
"""Seconds between two notes while tensors are read."""
POLL = 0.1


def _need(situation: Situation) -> Need | None:
    if situation.tp_size == 1 or not (situation.experts or VARIABLE in situation.environment):
        return None
    return Need(f"{situation.tp_size} ranks load, each at its own pace", required=False)


def _faulty(sources: Sources) -> bool:
    text = sources(MODULE)
    if VARIABLE in text:
        return False
    function(sources, MODULE, BARRIER)
    if not re.search(rf"^{CONSTANT}\b.*=\s*\d+", text, re.MULTILINE) or CONSTANT not in function(
        sources, MODULE, BARRIER
    ):
        raise LookupError(f"{MODULE}.{BARRIER} does not wait for a constant {CONSTANT}")
    return True


class Progress:
    """Notes of the ranks in the store of the default process group; none where there is no such store."""

    def __init__(self, store: Any, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.rank = rank
        self.clock = clock
        self.load = 1  # which of the models of this process: a draft model comes second
        self.begun = self.noted = clock()

    def note(self, step: str, *, done: bool = False) -> None:
        """Leave a note of what this rank does now."""
        self.noted = self.clock()
        record = {"load": self.load, "done": done, "step": step, "after": round(self.noted - self.begun)}
        if self.store is not None:
            self.store.set(f"truecast/load/{self.rank}", json.dumps(record))

    def begin(self) -> None:
        """Another model is loaded."""
        self.load += 1
        self.begun = self.clock()

    def arrive(self, ranks: Sequence[int]) -> None:
        """Count this rank among those of its group that wait."""
        self.store.add(self._count(ranks), 1)

    def complete(self, ranks: Sequence[int]) -> bool:
        """Whether the whole group waits."""
        return bool(self.store.add(self._count(ranks), 0) >= len(ranks))

    def _count(self, ranks: Sequence[int]) -> str:
        return f"truecast/loaded/{self.load}/{'-'.join(map(str, ranks))}"

    def missing(self, ranks: Sequence[int]) -> str:
        """What the ranks that are not at the barrier were last heard of."""
        said = []
        for rank in ranks:
            record = self._read(rank)
            if record is None or record["load"] < self.load:
                said.append(f"rank {rank} has not begun to load this model")
            elif record["load"] == self.load and not record["done"]:
                said.append(f"rank {rank}, {record['after']} s after it began: {record['step']}")
        return "; ".join(said)

    def _read(self, rank: int) -> dict[str, Any] | None:
        key = f"truecast/load/{rank}"
        if self.store is None or not self.store.check([key]):
            return None
        record: dict[str, Any] = json.loads(self.store.get(key))
        return record


_progress: Progress | None = None


def _here() -> Progress:
    global _progress
    if _progress is None:
        import torch.distributed as dist

        if not dist.is_initialized():
            return Progress(None, 0)
        store = getattr(dist.distributed_c10d, "_get_default_store", lambda: None)()
        _progress = Progress(store, dist.get_rank())
    return _progress


def _reading(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """AROUND the iterator over a checkpoint's tensors."""
    progress = _here()
    progress.note("reads the first tensor")
    count, name = 0, ""
    for item in original(*args, **kwargs):
        count, name = count + 1, item[0]
        if progress.clock() - progress.noted >= EVERY:
            progress.note(f"reads tensor {count}, {name}")
        yield item
    progress.note(f"has read {count} tensors, the last {name}, and prepares them")


def _barrier(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND the barrier: all ranks are waited for in the store first, so the barrier itself is passed at once.

    (Gloo's barrier keeps its time limit on rank 0 only; where rank 0 is the one that is late, the others would wait on.)
    """
    progress = _here()
    progress.note("is done", done=True)
    if progress.store is not None and kwargs.get("elastic_ep_backend") != "mooncake":  # whose ranks come and go
        from sglang.srt.distributed.parallel_state import get_tp_group

        _wait(progress, get_tp_group().ranks, _limit())
    result = original(*args, **kwargs)
    progress.begin()
    return result


def _limit() -> float:
    text = os.environ.get(VARIABLE)
    return float(getattr(sys.modules[MODULE], CONSTANT)) if text is None else seconds(text)


def _wait(progress: Progress, ranks: Sequence[int], limit: float) -> None:
    begun = time.monotonic()
    try:
        progress.arrive(ranks)
        while not progress.complete(ranks):
            if time.monotonic() - begun > limit:
                raise ValueError(
                    f"rank {progress.rank} has loaded its part of the model and waited {limit:g} s for the others:"
                    f" {progress.missing(ranks)}. Look into the log of what is named (out of memory, a slow disk or node),"
                    f" or allow more seconds with {VARIABLE}"
                )
            time.sleep(POLL)
    except RuntimeError as gone:  # the store lives in rank 0's process
        raise ValueError(
            f"rank {progress.rank} has loaded its part of the model, and rank 0 with the ranks' store is gone: {gone}"
        ) from gone


class _Dictionary:
    """A store in this process, for the self-test."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.set = self.values.__setitem__
        self.get = self.values.__getitem__

    def add(self, key: str, more: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + more)
        return int(self.values[key])

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)


def _selftest(situation: Situation) -> None:
    store = _Dictionary()
    ours, other = Progress(store, 0), Progress(store, 1)
    ours.note("is done", done=True)
    other.note("reads tensor 7, x")
    assert ours.missing([0, 1]) == "rank 1, 0 s after it began: reads tensor 7, x", ours.missing([0, 1])
    ours.arrive([0, 1])
    assert not ours.complete([0, 1]), "a group is complete with one of two"
    other.arrive([0, 1])
    assert ours.complete([0, 1]), "a group of two is not complete with both"


FIX = Fix(
    name="load-barrier",
    summary=f"{VARIABLE}, and missing ranks named",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=lambda situation: [Hook(f"{MODULE}.{BARRIER}", _barrier), Hook(LOADER, _reading)],
    selftest=_selftest,
    settings={VARIABLE: seconds},
)
