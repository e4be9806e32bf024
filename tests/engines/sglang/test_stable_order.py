"""Routes in their own order within each expert: by sorting and by the kernels, against loops."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

FORMULA = """
import random
import torch

def aligned(ids, tile, experts, seed):
    \"\"\"``moe_align_block_size`` by loops, as it may come out: slots of an expert dealt in any order.\"\"\"
    flat = ids.reshape(-1).tolist()
    shuffle = random.Random(seed).shuffle
    slots, wanted, expert_ids = [], [], []
    for expert in range(-1, experts):
        mine = [i for i, e in enumerate(flat) if e == expert]
        dealt = mine.copy()
        shuffle(dealt)
        empty = [len(flat)] * (-len(mine) % tile)
        slots += dealt + empty
        wanted += mine + empty
        expert_ids += [expert] * ((len(mine) + len(empty)) // tile)
    padded = len(slots)
    most = len(flat) * tile if len(flat) < experts + 1 else len(flat) + (experts + 1) * (tile - 1)
    slots += [len(flat)] * (most - padded)
    wanted += [len(flat)] * (most - padded)
    expert_ids += [-7] * (-(-most // tile) - len(expert_ids))  # what nobody wrote
    as_tensor = lambda numbers: torch.tensor(numbers, dtype=torch.int32, device=ids.device)
    return as_tensor(slots), as_tensor(expert_ids), as_tensor([padded]), as_tensor(wanted)
"""
exec(FORMULA)  # the same text runs in the interpreter's process

TILES = (8, 16, 32, 48, 64)


@given(
    st.lists(st.integers(-1, 11), max_size=150),
    st.sampled_from(TILES),
    st.integers(12, 200),
    st.integers(0, 99),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_plain_form_by_loops(numbers: list[int], tile: int, experts: int, seed: int, dtype: Any) -> None:
    from truecast.engines.sglang.kernels.stable_order import plain

    ids = torch.tensor(numbers, dtype=dtype)
    slots, _, _, wanted = globals()["aligned"](ids, tile, experts, seed)
    before = slots.clone()
    plain(ids, tile, experts, slots)
    assert torch.equal(slots, wanted)
    assert torch.equal(slots == len(numbers), before == len(numbers)), "padding stays where it was"
    assert torch.equal(slots.sort().values, before.sort().values)


KERNELS = (
    FORMULA
    + """
from hypothesis import given, settings, strategies as st
from truecast.engines.sglang.kernels import expert_counts, stable_order

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    stable_order._ROWS = 128  # the interpreter takes as long for a small program as for a large one

def check(n, tile, experts, low, seed, dtype=torch.int32):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(low, experts, (n,), generator=generator, dtype=dtype).to(device)
    slots, expert_ids, padded, wanted = aligned(ids, tile, experts, seed)
    for form in ("compare", "count"):
        made, kept = slots.clone(), expert_ids.clone()
        if form == "compare":
            stable_order.by_comparison(ids, tile, made, kept, padded)
        else:
            stable_order.by_counting(ids, tile, experts, made)
        assert torch.equal(made, wanted), (form, n, tile, experts, low, seed)
        assert torch.equal(kept, expert_ids)

@settings(deadline=None, max_examples=200 if device == "cuda" else 6, database=None)
@given(st.integers(1, 700), st.sampled_from([8, 16, 32, 48, 64]), st.integers(1, 60), st.integers(-1, 0),
       st.integers(0, 10**6), st.sampled_from([torch.int32, torch.int64]))
def drawn(n, tile, experts, low, seed, dtype):
    check(n, tile, experts, low, seed, dtype)

drawn()
check(1024, 64, 16, 0, 1)  # where SGLang begins to deal by atomic adds
check(1600, 8, 200, -1, 2)
if device == "cuda":
    for tokens in (2, 150, 512):
        check(tokens * 16, 8, 896, -1, tokens)
    check(131_072, 64, 896, 0, 3)
empty = torch.empty(0, dtype=torch.int32, device=device)
stable_order.put_in_order(empty, 8, 4, empty, empty, torch.zeros(1, dtype=torch.int32, device=device))
expert_counts.TILE, expert_counts._TILES, expert_counts.CHUNK = 32, 4, 8  # several groups of groups
check(300, 16, 7, -1, 4)
print("in order")
"""
)


def test_kernels_by_loops() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"}
    result = subprocess.run(
        [sys.executable, "-c", KERNELS], env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.stdout.strip() == "in order", result.stderr[-3000:]


def test_the_way_is_chosen_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from truecast.engines.sglang.kernels import stable_order

    taken: list[str] = []
    for name in ("by_comparison", "by_counting", "plain"):
        monkeypatch.setattr(stable_order, name, lambda *given, name=name: taken.append(name))
    slots = torch.empty(0, dtype=torch.int32)
    for n, experts in ((stable_order.SHORT, 9000), (stable_order.SHORT + 1, 4095), (stable_order.SHORT + 1, 4096)):
        stable_order.put_in_order(torch.zeros(n, dtype=torch.int32), 8, experts, slots, slots, slots)
    assert taken == ["by_comparison", "by_counting", "plain"]
