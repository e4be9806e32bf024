"""W4AFP8's routing map: counting gives what sorting gives, and takes the place of each release's own function."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.conftest import Release
from truecast.engines.sglang import hooking
from truecast.engines.sglang.fixes import w4a8_routing as fix
from truecast.engines.sglang.situation import Situation

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def situation(**changes: Any) -> Situation:
    given = {"version": "0.5.17", "model": "m", "config": {"num_experts": 896}, "ep_size": 32, **changes}
    return Situation(**{"quantization": "w4afp8", **given})


def by_sorting(ids: Any) -> Any:
    order = torch.sort(ids.view(-1), stable=True).indices
    return torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=ids.device)).int()


@given(st.lists(st.integers(-1, 30), max_size=200), st.sampled_from([torch.int32, torch.int64]))
def test_plain_form_is_the_stable_sort(numbers: list[int], dtype: Any) -> None:
    from truecast.engines.sglang.kernels.routing import plain

    ids = torch.tensor(numbers, dtype=dtype)
    assert torch.equal(plain(ids, 32), by_sorting(ids))


KERNELS = """
import torch
from hypothesis import given, settings, strategies as st
from truecast.engines.sglang.kernels import expert_counts, routing

device = "cuda" if torch.cuda.is_available() else "cpu"
draws = 200 if device == "cuda" else 5
if device == "cpu":
    routing._ROWS = 128  # the interpreter takes as long for a small program as for a large one

@settings(deadline=None, max_examples=draws, database=None)
@given(st.integers(1, 700), st.integers(-1, 60), st.integers(0, 60), st.integers(0, 10**6), st.booleans())
def check(n, low, width, seed, wide):
    generator = torch.Generator().manual_seed(seed)
    high = min(low + width, 62)
    ids = torch.randint(low, high + 1, (n,), generator=generator, dtype=torch.int64 if wide else torch.int32)
    ids = ids.to(device)
    wanted = routing.plain(ids, 64)
    assert torch.equal(routing.by_comparison(ids), wanted), ("compare", n, low, high, seed)
    assert torch.equal(routing.by_counting(ids, 64), wanted), ("count", n, low, high, seed)

check()
for n, most in ((640, 28), (1600, 896)):
    ids = torch.randint(0, most + 1, (n,), dtype=torch.int32).to(device)
    wanted = routing.plain(ids, 1024)
    assert torch.equal(routing.by_counting(ids, 1024), wanted), n
    if n <= 1600 or device == "cuda":
        assert torch.equal(routing.places(ids, 1024), wanted), n
same = torch.full((777,), 3, dtype=torch.int32, device=device)
assert torch.equal(routing.by_counting(same, 8), torch.arange(777, dtype=torch.int32, device=device))
for form in (routing.by_comparison, lambda ids: routing.by_counting(ids, 8)):
    assert form(same[:0]).shape == (0,)
routing.SHORT = 100
assert torch.equal(routing.places(same, 8), torch.arange(777, dtype=torch.int32, device=device))
expert_counts.TILE, expert_counts._TILES, expert_counts.CHUNK = 32, 4, 8  # several blocks of tiles
ids = torch.randint(-1, 7, (900,), dtype=torch.int32, device=device)
assert torch.equal(routing.by_counting(ids, 8), routing.plain(ids, 8))
if device == "cuda":
    for n in (8192, 8193, 65_536, 262_144):
        ids = torch.randint(0, 897, (n,), dtype=torch.int32, device=device)
        assert torch.equal(routing.places(ids, 1024), routing.plain(ids, 1024)), n
print("equal")
"""


def test_kernels_are_the_plain_form() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"}
    result = subprocess.run(
        [sys.executable, "-c", KERNELS], env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.stdout.strip() == "equal", result.stderr[-3000:]


@pytest.fixture
def routed(release: Release, hook_registry: Any, place: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The release's own function where there are no kernels: its scatter is done by PyTorch."""
    import triton

    class Scatter:
        def __getitem__(self, grid: object) -> Any:
            def run(*args: Any) -> None:
                reorder, dst = (args[0], args[1]) if len(args) == 4 else (args[1], args[2])
                dst.scatter_(0, reorder, torch.arange(reorder.numel(), dtype=dst.dtype))

            return run

    module = place(fix.MODULE, {"torch": torch, "triton": triton, "compute_src2dst_triton_kernel": Scatter()})
    release.cut(fix.MODULE, {fix.NAME}, vars(module))
    monkeypatch.setattr(fix, "_bins", 0)
    return place(fix.CALLER, {fix.NAME: getattr(module, fix.NAME)})


def test_map_equals_the_releases_own(routed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from truecast.engines.sglang.kernels import routing

    sorts = []
    sort = torch.sort
    monkeypatch.setattr(torch, "sort", lambda *args, **kwargs: sorts.append(1) or sort(*args, **kwargs))
    ids = torch.randint(0, 29, (40, 16), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    stock = getattr(routed, fix.NAME)(ids)
    assert sorts and torch.equal(stock, routing.plain(ids, 32))
    hooking.put_on(fix.FIX.hooks(situation()))
    assert torch.equal(getattr(routed, fix.NAME)(ids), stock), "without a GPU the stock function stays"

    class OnGpu(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(routing, "places", lambda ids, bins: routing.plain(ids.as_subclass(torch.Tensor), bins))
    sorts.clear()
    ours = getattr(routed, fix.NAME)(ids.as_subclass(OnGpu))
    assert not sorts and torch.equal(ours, stock)


def test_bins_are_enough_for_each_model_of_a_process(routed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft with few experts takes no bins from the model, nor the other way round."""
    from truecast.engines.sglang.kernels import routing

    class OnGpu(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(routing, "places", lambda ids, bins: bins)
    for first, then in ((896, 2000), (2000, 8)):
        monkeypatch.setattr(fix, "_bins", 0)
        for count in (first, then):
            hooks = fix.FIX.hooks(situation(config={"num_experts": count}))
        hook = hooks[0].function
        assert hook(None, torch.zeros(4, dtype=torch.int32).as_subclass(OnGpu)) == 2048


def test_more_experts_than_can_be_counted(routed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from truecast.engines.sglang.kernels import routing

    monkeypatch.setattr(routing, "places", lambda ids, bins: pytest.fail("counted"))
    hooking.put_on(fix.FIX.hooks(situation(config={"num_experts": 5000}, ep_size=1)))
    ids = torch.randint(0, 5000, (routing.SHORT + 1, 1), dtype=torch.int32)

    class OnGpu(torch.Tensor):
        is_cuda = True

    stock = getattr(routed, fix.NAME)(ids.as_subclass(OnGpu)).as_subclass(torch.Tensor)
    assert torch.equal(stock, by_sorting(ids))


@given(st.integers(1, 3000), st.integers(0, 8))
def test_bins_hold_every_id(experts: int, shared: int) -> None:
    found = fix.bins(situation(config={"num_experts": experts, "n_shared_experts": shared}))
    assert found & (found - 1) == 0
    assert found - 2 >= experts + shared, "one past the last expert has a place, and -1 before it"


def test_fault_is_recognised(release: Release) -> None:
    sorts = release.version != "0.5.23"
    assert fix.FIX.faulty(release.sources) == sorts
    with pytest.raises(LookupError, match="cutlass_w4a8_moe"):
        fix.FIX.faulty(release.without(fix.CALLER).sources)
    with pytest.raises(LookupError, match="not known"):
        other = release.edited(fix.CALLER, f"src2dst = {fix.NAME}(", "src2dst = other(")
        fix.FIX.faulty(
            other.edited(fix.CALLER, "cutlass_prepare_moe_input(", "another(").sources if not sorts else other.sources
        )
    if sorts:
        counted = release.edited(fix.MODULE, "torch.sort(topk_ids.view(-1), stable=True)", "count(topk_ids)")
        assert not fix.FIX.faulty(counted.sources)
        with pytest.raises(LookupError, match=fix.NAME):
            fix.FIX.faulty(release.without(fix.MODULE).sources)


def test_when_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fix.SETTING, raising=False)
    need = fix.FIX.need(situation())
    assert need is not None and not need.required
    for changes in ({"quantization": "mxfp4"}, {"config": {}}):
        assert fix.FIX.need(situation(**changes)) is None
    for text, on in (("sort", False), ("count", True)):
        monkeypatch.setenv(fix.SETTING, text)
        assert (fix.FIX.need(situation()) is not None) == on
    for text in ("1", "", "radix"):
        with pytest.raises(ValueError, match="neither count nor sort"):
            fix.FIX.settings[fix.SETTING](text)
