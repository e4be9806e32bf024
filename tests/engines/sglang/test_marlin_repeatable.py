"""FP4 on Marlin answers the same twice: what the released callers pass to the kernel, and in which order routes come."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engines.conftest import Release
from tests.engines.sglang.conftest import Place
from truecast.engines.sglang import hooking
from truecast.engines.sglang.fixes.marlin_repeatable import (
    ALIGN,
    ALIGNMENT,
    CALLER,
    DENSE,
    EXPERTS,
    FIX,
    ORDER,
    VARIABLE,
)
from truecast.engines.sglang.situation import Situation

MARLIN = Situation(
    version="0.5.17", model="m", quantization="modelopt_fp4", config={"num_experts": 8}, moe_backend="marlin"
)
FP4 = "sglang.srt.layers.quantization.marlin_utils_fp4"


MXFP4 = Situation(
    version="0.5.17",
    model="m",
    quantization="compressed-tensors",
    config={"num_experts": 8},
    quantization_config={"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    moe_backend="marlin",
)


def test_the_user_may_ask_for_atomic_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FIX.need(MARLIN) is not None
    monkeypatch.setenv(VARIABLE, "1")
    assert FIX.need(MARLIN) is None
    monkeypatch.setenv(VARIABLE, "0")
    assert FIX.need(MARLIN) is not None
    assert FIX.need(Situation(version="0.5.17", model="m", quantization="mxfp4", moe_backend="marlin")) is None  # dense


def targets(situation: Situation) -> list[str]:
    return [hook.target for hook in FIX.hooks(situation)]


def test_what_is_hooked_for_which_format(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FIX.need(MXFP4) is not None and targets(MXFP4) == [ALIGN]
    assert FIX.need(replace(MXFP4, quantization="mxfp4", quantization_config={})) is not None
    assert FIX.need(replace(MXFP4, moe_backend="triton")) is None
    assert FIX.need(replace(MXFP4, quantization_config={"format": "pack-quantized"})) is None
    assert targets(MARLIN)[0] == ALIGN and len(targets(MARLIN)) == 3
    dense = replace(MARLIN, config={}, moe_backend="auto", linear_backend="marlin")  # no expert layer to hook
    assert FIX.need(dense) is not None and [t.rpartition(".")[2] for t in targets(dense)] == ["gptq_marlin_gemm"]
    nvfp4 = replace(
        MXFP4, quantization_config={"format": "nvfp4-pack-quantized"}, moe_backend="auto", capability=(9, 0)
    )
    assert FIX.need(nvfp4) is not None and targets(nvfp4) == targets(MARLIN)
    monkeypatch.setenv(VARIABLE, "1")  # which is the user's for NVFP4, and nothing to MXFP4
    assert targets(MXFP4) == [ALIGN]
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv(ORDER, "0")
    assert FIX.need(MXFP4) is None
    assert ALIGN not in targets(MARLIN) and len(targets(MARLIN)) == 2
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        FIX.settings[ORDER]("yes")


def test_the_fault_is_recognised(release: Release) -> None:
    assert FIX.faulty(release.sources)
    mended = release.edited(CALLER, "and (not is_mxfp4_marlin)", "and not (is_mxfp4_marlin or is_nvfp4_marlin)")
    assert FIX.faulty(mended.sources)  # rows are still dealt by atomic adds
    mended = mended.edited(ALIGNMENT, "sgl_moe_align_block_size(", "align_in_order(")
    assert FIX.faulty(mended.sources)  # linear layers still add in any order
    assert not FIX.faulty(mended.edited(FP4, "use_atomic_add=use_atomic_add", "use_atomic_add=False").sources)
    for gutted in (
        release.without(CALLER),
        release.edited(CALLER, "use_atomic_add = (", "adds = ("),
        release.edited(CALLER, "moe_align_block_size(", "align("),
        release.without(ALIGNMENT),
    ):
        with pytest.raises(LookupError):
            FIX.faulty(gutted.sources)


class Stop(Exception):
    """The kernel was reached."""


@pytest.fixture
def kernels(release: Release, hook_registry: Any, place: Place) -> list[dict[str, Any]]:
    """The released signatures of both kernels; each call is noted, and the MoE layer ends at its first."""
    import ast

    calls: list[dict[str, Any]] = []
    dense = next(m for m in DENSE if f"{m.replace('.', '/')}.py" in release.wheel.namelist())
    for module, name, end in ((EXPERTS, "moe_wna16_marlin_gemm", Stop), (dense, "gptq_marlin_gemm", None)):
        (node,) = [n for n in ast.parse(release.sources(module)).body if getattr(n, "name", None) == name]
        assert isinstance(node, ast.FunctionDef)
        node.decorator_list = []
        node.body = ast.parse("return _note(locals())").body

        def note(given: dict[str, Any], end: type[Exception] | None = end) -> Any:
            calls.append(given)
            if end is not None:
                raise end
            return torch.zeros(given["size_m"], given["size_n"])

        scope = {"_note": note}
        exec(compile("from __future__ import annotations\n" + ast.unparse(node), module, "exec"), scope)
        place(module, {name: scope[name]})
    return calls


@pytest.fixture
def moe(release: Release, kernels: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The released ``fused_marlin_moe`` on a Hopper that is not there."""
    import ast
    import sys

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    triton = place("sglang.srt.layers.moe.fused_moe_triton", {})
    monkeypatch.setattr(triton, "moe_align_block_size", lambda *a, **k: (torch.zeros(8), None, None), raising=False)
    types = place("sgl_kernel.scalar_type", {"scalar_types": SimpleNamespace(float4_e2m1f="fp4", uint4b8="int4")})
    assert types is sys.modules["sgl_kernel.scalar_type"]
    (node,) = [n for n in ast.parse(release.sources(CALLER)).body if getattr(n, "name", None) == "fused_marlin_moe"]
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    imported = {"moe_wna16_marlin_gemm": sys.modules[EXPERTS].moe_wna16_marlin_gemm}  # as ``from ... import`` does
    module = place(CALLER, {"torch": torch, "Optional": Any, **imported})
    scope = vars(module)
    release.cut(CALLER, {"get_scalar_type"}, scope)
    exec(compile("from __future__ import annotations\n" + ast.unparse(node), CALLER, "exec"), scope)
    return module


def run(moe: Any, scale: torch.dtype, global_scale: bool) -> None:
    x = torch.zeros(4, 64, dtype=torch.bfloat16)
    given = torch.ones(2) if global_scale else None
    with pytest.raises(Stop):
        moe.fused_marlin_moe(
            x,
            torch.zeros(2, 4, 256, dtype=torch.int32),
            torch.zeros(2, 4, 128, dtype=torch.int32),
            torch.zeros(2, 4, 128).to(scale),
            torch.zeros(2, 4, 64).to(scale),
            torch.zeros(4, 2),
            torch.zeros(4, 2),
            torch.zeros(4, 2, dtype=torch.int32),
            w1_global_scale=given,
            w2_global_scale=given,
            workspace=torch.zeros(1),
            num_bits=4,
        )


def test_experts(moe: Any, kernels: list[dict[str, Any]]) -> None:
    run(moe, torch.float8_e4m3fn, True)
    assert kernels[-1]["use_atomic_add"] is True
    hooking.put_on(FIX.hooks(MARLIN))
    FIX.selftest(MARLIN)
    run(moe, torch.float8_e4m3fn, True)
    assert kernels[-1]["use_atomic_add"] is False
    run(moe, torch.bfloat16, False)  # INT4 keeps what SGLang chose
    assert kernels[-1]["use_atomic_add"] is True


def test_dense_layers(release: Release, kernels: list[dict[str, Any]], hook_registry: Any, align: Any) -> None:
    import importlib
    import sys

    scope: dict[str, Any] = {
        "torch": torch,
        "USE_FP32_REDUCE_DEFAULT": True,
        "should_use_atomic_add_reduce": lambda **given: True,
        "scalar_types": SimpleNamespace(float4_e2m1f="fp4"),
        "register_custom_op": lambda **given: lambda function: function,
        "fake_apply_fp4_marlin_linear": None,
    }
    release.cut(FP4, {"apply_fp4_marlin_linear"}, scope)
    dense = next(sys.modules[m] for m in DENSE if m in sys.modules)
    weight = torch.zeros(4, 128, dtype=torch.int32)

    def call() -> None:
        scope["gptq_marlin_gemm"] = dense.gptq_marlin_gemm
        x = torch.zeros(2, 64, dtype=torch.bfloat16)
        scope["apply_fp4_marlin_linear"](x, weight, weight, torch.ones(1), weight, 64, 64)

    call()
    assert kernels[-1]["use_atomic_add"] is True
    hooking.put_on(FIX.hooks(MARLIN))
    call()
    assert kernels[-1]["use_atomic_add"] is False
    importlib.invalidate_caches()


def test_the_selftest_sees_another_signature(moe: Any, kernels: Any, place: Place) -> None:
    place(EXPERTS, {"moe_wna16_marlin_gemm": lambda a, c, b, bias, scales, group, global_scale_or_none: None})
    with pytest.raises(AssertionError, match="argument 5"):
        FIX.selftest(MARLIN)


@pytest.fixture
def align(release: Release, hook_registry: Any, place: Place) -> Any:
    """The released ``moe_align_block_size`` over a kernel that deals slots as the GPU may, in another order each time."""
    import random

    import triton

    calls: list[int] = []

    def dealing(ids: Any, bins: int, tile: int, slots: Any, experts: Any, padded: Any, *more: Any) -> None:
        calls.append(1)
        slots.fill_(ids.numel())
        end = 0
        for expert in range(-1, bins - 1):
            mine = [i for i, e in enumerate(ids.reshape(-1).tolist()) if e == expert]
            random.Random(len(calls)).shuffle(mine)
            slots[end : end + len(mine)] = torch.tensor(mine, dtype=torch.int32)
            tiles = -(-len(mine) // tile)
            experts[end // tile : end // tile + tiles] = expert
            end += tiles * tile
        padded[0] = end

    names = {"torch": torch, "triton": triton, "_SGLANG_EXPERIMENTAL_LORA_OPTI": False, "_is_cuda": False}
    module = place(ALIGNMENT, {**names, "sgl_moe_align_block_size": dealing})
    release.cut(ALIGNMENT, {"moe_align_block_size"}, vars(module))
    return place(ALIGN.rpartition(".")[0], {"moe_align_block_size": module.moe_align_block_size})


class OnGpu(torch.Tensor):
    is_cuda = True


def rows_of_tiles(made: Any, tile: int) -> list[set[int]]:
    slots, _, padded = made
    return [set(rows.tolist()) for rows in slots[: int(padded[0])].view(-1, tile)]


def test_the_same_rows_lie_in_the_same_tile(align: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from truecast.engines.sglang.kernels import stable_order

    def plain(ids: Any, tile: int, experts: int, slots: Any, expert_ids: Any, padded: Any) -> None:
        stable_order.plain(ids.as_subclass(torch.Tensor), tile, experts, slots)

    monkeypatch.setattr(stable_order, "put_in_order", plain)
    ids = torch.randint(-1, 16, (256, 4), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    stock = [align.moe_align_block_size(ids.as_subclass(OnGpu), 8, 16) for _ in range(2)]
    assert rows_of_tiles(stock[0], 8) != rows_of_tiles(stock[1], 8)
    hooking.put_on(FIX.hooks(MXFP4))
    on_cpu = align.moe_align_block_size(ids, 8, 16)
    assert rows_of_tiles(on_cpu, 8) != rows_of_tiles(stock[0], 8), "without a GPU the stock function stays"
    ours = [align.moe_align_block_size(ids.as_subclass(OnGpu), 8, 16) for _ in range(2)]
    end = int(stock[0][2][0])
    for made in ours:
        assert torch.equal(made[0], ours[0][0])
        assert torch.equal(made[2], stock[0][2]) and torch.equal(made[1][: end // 8], stock[0][1][: end // 8])
        assert torch.equal(made[0][:end].sort().values, stock[0][0][:end].sort().values)
        for expert, rows in zip(made[1].tolist(), made[0][:end].view(-1, 8).tolist(), strict=False):
            here = [row for row in rows if row < ids.numel()]
            assert here == sorted(here) and {int(ids.view(-1)[row]) for row in here} == {expert}
    other = align.moe_align_block_size(ids.as_subclass(OnGpu), 8, 16, ignore_invalid_expert=True)
    assert not torch.equal(other[0], ours[0][0]), "another numbering of experts is left alone"
