"""Marlin's tile under expert parallelism: each release's own function, run up to its first kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.conftest import Release
from truecast.engines.sglang import hooking
from truecast.engines.sglang.fix import Hook, Kind
from truecast.engines.sglang.fixes import marlin_ep_tile as fix
from truecast.engines.sglang.situation import Situation

torch = pytest.importorskip("torch")

TOPK, EXPERTS, LOCAL = 16, 896, 28


def situation(**changes: Any) -> Situation:
    given = {"version": "0.5.17", "model": "m", "config": {"num_experts": EXPERTS}, "ep_size": 32, **changes}
    return Situation(**{"moe_backend": "marlin", **given})


class _Reached(Exception):
    """The first kernel was called."""


class Run:
    """``fused_marlin_moe`` of a release with tensors that have a shape only, until it aligns routes to tiles."""

    def __init__(self, release: Release, place: Any):
        self.names: list[str] = []
        self.tile = 0

        def align(topk_ids: Any, block_size_m: int, experts: int, **more: Any) -> None:
            self.tile, self.experts = block_size_m, experts
            raise _Reached

        def register(out_shape: str) -> Any:
            def keep(function: Any) -> Any:
                self.names.append(function.__name__)
                return function

            return keep

        place("sglang.srt.layers.moe.fused_moe_triton", {"moe_align_block_size": align})
        names = {"torch": torch, "Optional": Any | None, "register_custom_op": register}
        source = release.sources(fix.MODULE)
        self.module = place(fix.MODULE, names)
        release.cut(fix.MODULE, {fix.NAME}, vars(self.module))
        function = getattr(self.module, fix.NAME)
        assert "block_size_m" in source
        setattr(self.module, fix.NAME, register("hidden_states")(function))
        self.release = release

    def put_on(self, fixed: int = 0) -> None:
        ours = fix.rebuilt(self.release.sources, vars(self.module), fixed)
        hooking.put_on([Hook(f"{fix.MODULE}.{fix.NAME}", ours, Kind.REPLACE)])

    def __call__(self, rows: int, local: int = LOCAL, experts: int = EXPERTS, mapped: bool = True) -> int:
        meta: dict[str, Any] = {"device": "meta"}
        k, n = 3584, 3072
        scale = torch.float8_e8m0fnu
        with pytest.raises(_Reached):
            getattr(self.module, fix.NAME)(
                hidden_states=torch.empty(rows, k, dtype=torch.bfloat16, **meta),
                w1=torch.empty(local, k // 16, 2 * n * 2, dtype=torch.int32, **meta),
                w2=torch.empty(local, n // 16, k * 2, dtype=torch.int32, **meta),
                w1_scale=torch.empty(local, k // 32, 2 * n, dtype=scale, **meta),
                w2_scale=torch.empty(local, n // 32, k, dtype=scale, **meta),
                gating_output=torch.empty(rows, experts, **meta),
                topk_weights=torch.empty(rows, TOPK, **meta),
                topk_ids=torch.empty(rows, TOPK, dtype=torch.int32, **meta),
                global_num_experts=experts if mapped else -1,
                expert_map=torch.empty(experts, dtype=torch.int32, **meta) if mapped else None,
                num_bits=4,
            )
        assert self.experts == (experts if mapped else local)
        return self.tile


@pytest.fixture
def run(release: Release, hook_registry: Any, place: Any) -> Run:
    return Run(release, place)


TABLE = [(20, 16, 8), (50, 32, 8), (64, 48, 8), (150, 64, 8), (192, 64, 8), (512, 64, 16), (4096, 64, 64)]
"""Tokens, and the tile of stock and of the fix, Kimi-K3 over 32 ranks."""


def test_tile_over_32_ranks(run: Run) -> None:
    assert [run(rows) for rows, _, _ in TABLE] == [stock for _, stock, _ in TABLE]
    run.put_on()
    assert [run(rows) for rows, _, _ in TABLE] == [ours for _, _, ours in TABLE]
    fix.FIX.selftest(situation())
    assert run.names == [fix.NAME, f"truecast_{fix.NAME}"], "an operator of its own, or SGLang would take the old one"


def test_a_second_model_does_not_build_it_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix, "installed", lambda: run.release.sources)
    first = list(fix.FIX.hooks(situation()))
    hooking.put_on(first)
    assert list(fix.FIX.hooks(situation(is_draft=True))) == first
    assert run.names == [fix.NAME, f"truecast_{fix.NAME}"], "an operator cannot be made twice under one name"


def test_without_expert_parallelism_nothing_changes(run: Run) -> None:
    stock = [run(rows, mapped=False) for rows in (2, 20, 150, 4096)]
    here = [run(rows, local=56, experts=56) for rows in (2, 20, 150, 4096)]
    run.put_on(fixed=64)
    assert [run(rows, mapped=False) for rows in (2, 20, 150, 4096)] == stock
    assert [run(rows, local=56, experts=56) for rows in (2, 20, 150, 4096)] == here


def test_a_tile_of_the_users_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.put_on(fixed=32)
    assert {run(rows) for rows in (1, 20, 4096)} == {32}
    monkeypatch.setenv(fix.SETTING, "32")
    fix.FIX.selftest(situation())
    monkeypatch.delenv(fix.SETTING)
    with pytest.raises(AssertionError):
        fix.FIX.selftest(situation())


def test_what_is_hooked_later_is_called(run: Run, place: Any) -> None:
    """The function sees its module as it is, not as it was."""
    run.put_on()
    run.module.torch = SimpleNamespace(float16=0, bfloat16=0)
    with pytest.raises(AssertionError):  # bfloat16 is no longer among the types that it takes
        getattr(run.module, fix.NAME)(
            *(torch.empty(1, 1600), torch.empty(1, 100, 1), torch.empty(1, 1, 3200), None, None, torch.empty(1)),
            *(None, None),
            num_bits=4,
        )


@given(rows=st.integers(1, 70_000), topk=st.integers(1, 32), local=st.integers(1, 896), ranks=st.integers(2, 64))
def test_tile_fits_the_rows_of_an_expert(rows: int, topk: int, local: int, ranks: int) -> None:
    experts = local * ranks
    chosen = fix.tile(64, rows, topk, local, object(), experts)
    expected = rows * topk / experts
    assert chosen in fix.TILES
    assert expected < 0.9 * chosen or chosen == 64
    assert all(expected >= 0.9 * smaller for smaller in fix.TILES if smaller < chosen)


def test_fault_is_recognised(release: Release) -> None:
    assert fix.FIX.faulty(release.sources)
    line = "if M * topk / E / block_size_m < 0.9:"
    for mended in (
        "if M * topk / global_num_experts / block_size_m < 0.9:",
        line.replace("/ E", "/ (E or expert_map)"),
    ):
        assert not fix.FIX.faulty(release.edited(fix.MODULE, line, mended).sources)
    scaled = release.edited(fix.MODULE, "E = w1.shape[0]", "E = global_num_experts")
    assert not fix.FIX.faulty(scaled.sources)
    with pytest.raises(LookupError, match="in a way that is not known"):
        fix.FIX.faulty(release.edited(fix.MODULE, line, "if tuned(E):").sources)
    with pytest.raises(LookupError, match="0 loops"):
        fix.FIX.faulty(release.edited(fix.MODULE, "for block_size_m in", "for tile in").sources)
    with pytest.raises(LookupError, match=fix.NAME):
        fix.FIX.faulty(release.without(fix.MODULE).sources)


def test_when_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fix.SETTING, raising=False)
    need = fix.FIX.need(situation())
    assert need is not None and not need.required
    assert fix.FIX.need(situation(moe_backend="auto")) is not None
    for changes in ({"ep_size": 1}, {"moe_backend": "triton"}, {"config": {}}):
        assert fix.FIX.need(situation(**changes)) is None
    for text, on in (("off", False), ("0", False), ("1", True), ("auto", True), ("8", True), ("64", True)):
        monkeypatch.setenv(fix.SETTING, text)
        assert (fix.FIX.need(situation()) is not None) == on
    for text in ("yes", "24", "-8", ""):
        with pytest.raises(ValueError, match="neither auto, off nor one of 8, 16, 32, 48, 64"):
            fix.FIX.settings[fix.SETTING](text)
