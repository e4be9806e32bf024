"""Ranks that wait after loading: real processes over gloo, one of which stalls, at the released barrier."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.engines.conftest import SGLANG_VERSIONS, Release
from truecast.engines.sglang.fixes import load_barrier
from truecast.engines.sglang.fixes.load_barrier import BARRIER, CONSTANT, FIX, MODULE, VARIABLE, Progress
from truecast.engines.sglang.situation import Situation

MOE = Situation(version="0.5.17", model="m", tp_size=3, config={"num_experts": 8})
RANKS = 3
TENSORS = [f"model.layers.{i}.weight" for i in range(5)]


def test_it_is_for_several_ranks_of_an_moe_or_where_a_time_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    need = FIX.need(MOE)
    assert need is not None and not need.required
    assert FIX.need(Situation(version="0.5.17", model="m", config={"num_experts": 8})) is None
    dense = Situation(version="0.5.17", model="m", tp_size=2)
    assert FIX.need(dense) is None
    monkeypatch.setenv(VARIABLE, "900")
    assert FIX.need(dense) is not None


def test_the_fault_is_recognised(release: Release) -> None:
    assert FIX.faulty(release.sources)
    mended = release.edited(MODULE, f"{CONSTANT} = 480", f'{CONSTANT} = int(os.environ.get("{VARIABLE}", 480))')
    assert not FIX.faulty(mended.sources)
    for gutted in (
        release.without(MODULE),
        release.edited(MODULE, f"def {BARRIER}", "def another"),
        release.edited(MODULE, f"seconds={CONSTANT}", "seconds=timeout"),
    ):
        with pytest.raises(LookupError):
            FIX.faulty(gutted.sources)


def test_progress_of_several_models() -> None:
    store, now = load_barrier._Dictionary(), [0.0]
    ranks = [Progress(store, rank, lambda: now[0]) for rank in range(3)]
    for rank in ranks[:2]:
        rank.note("is done", done=True)
    now[0] = 12.0
    assert ranks[0].missing([0, 1, 2]) == "rank 2 has not begun to load this model"
    ranks[2].note("reads tensor 3, x")
    assert ranks[0].missing([0, 1, 2]) == "rank 2, 12 s after it began: reads tensor 3, x"
    ranks[2].note("is done", done=True)
    assert ranks[0].missing([0, 1, 2]) == ""
    for rank in ranks:
        rank.begin()  # the draft model
    ranks[0].note("is done", done=True)
    now[0] = 15.0
    ranks[1].note("reads tensor 1, y")
    assert ranks[0].missing([0, 1, 2]) == (
        "rank 1, 3 s after it began: reads tensor 1, y; rank 2 has not begun to load this model"
    )


@dataclass(frozen=True)
class Run:
    """One go of the ranks at two models: which rank stalls and in which of them, or none."""

    version: str
    stalls: int = -1
    in_model: int = 1
    hooked: bool = True


RUNS = {
    **{f"{version}, rank 1 stalls": Run(version, stalls=1) for version in SGLANG_VERSIONS},
    "rank 0 stalls in the second model": Run("0.5.23", stalls=0, in_model=2),
    "all arrive": Run("0.5.20"),
    "stock": Run("0.5.17", stalls=1, hooked=False),  # last: gloo's barrier breaks the group
}


def world(run: Run) -> Any:
    """SGLang's modules as far as the barrier goes, from the wheel. In a process of its own."""
    import datetime

    import torch.distributed as dist

    release = Release.of(run.version)
    group = SimpleNamespace(cpu_group=dist.group.WORLD, ranks=list(range(RANKS)))

    class DefaultModelLoader:
        def _get_weights_iterator(self, source: object) -> Iterator[tuple[str, int]]:
            for name in TENSORS:
                yield name, 0

    contents: dict[str, dict[str, Any]] = {
        MODULE: {
            "dist": dist,
            "datetime": datetime,
            "get_tp_group": lambda: group,
            "get_parallel": lambda: SimpleNamespace(tp_group=group),
        },
        "sglang.srt.distributed.parallel_state": {"get_tp_group": lambda: group},
        "sglang.srt.model_loader.loader": {"DefaultModelLoader": DefaultModelLoader},
        "sglang.srt.plugins.hook_registry": {},
    }
    for name, values in contents.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
            module.__path__ = []
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module)
        vars(sys.modules[name]).update(values)
    release.cut(MODULE, {BARRIER, CONSTANT}, vars(sys.modules[MODULE]))
    registry = sys.modules["sglang.srt.plugins.hook_registry"]
    exec(compile(release.sources(registry.__name__), "hook_registry.py", "exec"), vars(registry))
    return sys.modules[MODULE], DefaultModelLoader


def rank_process(rank: int, port: int, said: Any, go_on: dict[str, Any]) -> None:
    import torch.distributed as dist

    os.environ[VARIABLE] = "2"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    store = dist.distributed_c10d._get_default_store()
    for name, run in RUNS.items():
        module, loader = world(run)
        if run.hooked:
            from truecast.engines.sglang import hooking

            load_barrier.EVERY = 0.0
            load_barrier._progress = Progress(dist.PrefixStore(name, store), rank)
            hooking.put_on(FIX.hooks(MOE))
        else:
            setattr(module, CONSTANT, 2)
        said.put((name, rank, *two_models(rank, run, module, loader, go_on[name])))
        go_on[name].wait()
    time.sleep(600)  # rank 0 holds the store; all are killed


def two_models(rank: int, run: Run, module: Any, loader: Any, go_on: Any) -> tuple[int, str]:
    for model in (1, 2):
        late = rank == run.stalls and model == run.in_model
        if late and model == 2:
            go_on.wait()
            return model, "stalled"
        for count, _ in enumerate(loader()._get_weights_iterator(None), 1):
            if late and count == 3:
                go_on.wait()
                return model, "stalled"
        try:
            getattr(module, BARRIER)(elastic_ep_backend=None, tp_rank=rank)
        except ValueError as error:
            return model, str(error)
    return 2, ""


Heard = dict[str, dict[int, tuple[int, str]]]


@pytest.fixture(scope="module")
def heard() -> Heard:
    """What each rank came to in each run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    said, go_on = context.Queue(), {name: context.Event() for name in RUNS}
    processes = [context.Process(target=rank_process, args=(r, port, said, go_on), daemon=True) for r in range(RANKS)]
    told: Heard = {name: {} for name in RUNS}
    try:
        for process in processes:
            process.start()
        for name, run in RUNS.items():
            for _ in range(RANKS - (run.stalls >= 0)):
                of, rank, model, text = said.get(timeout=120)
                told[of][rank] = (model, text)
            go_on[name].set()
            if run.stalls >= 0 and name != "stock":
                of, rank, model, text = said.get(timeout=120)
                assert (of, rank, text) == (name, run.stalls, "stalled")
    finally:
        for process in processes:
            process.kill()
            process.join()
    return told


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_the_missing_rank_is_named_and_how_far_it_got(heard: Heard, version: str) -> None:
    said = heard[f"{version}, rank 1 stalls"]
    assert sorted(said) == [0, 2]
    for rank, (model, text) in said.items():
        assert model == 1 and f"rank {rank} has loaded its part of the model and waited 2 s" in text
        assert re.search(r"others: rank 1, \d+ s after it began: reads tensor 3, model\.layers\.2\.weight\. ", text), (
            text
        )
        assert VARIABLE in text


def test_stock_names_nobody(heard: Heard) -> None:
    assert sorted(heard["stock"]) == [0, 2]
    assert all("other ranks" in text and "rank 1" not in text for _, text in heard["stock"].values())


def test_a_late_rank_0_is_noticed_by_the_others_in_the_second_model(heard: Heard) -> None:
    said = heard["rank 0 stalls in the second model"]
    assert sorted(said) == [1, 2]
    for model, text in said.values():
        assert model == 2 and "others: rank 0 has not begun to load this model" in text


def test_ranks_that_all_arrive_go_on(heard: Heard) -> None:
    assert heard["all arrive"] == dict.fromkeys(range(RANKS), (2, ""))
