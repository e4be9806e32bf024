"""NVFP4 on Marlin without atomic adds: what the released callers pass to the kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engines.conftest import Release
from tests.engines.sglang.conftest import Place
from truecast.engines.sglang import hooking
from truecast.engines.sglang.fixes.nvfp4_repeatable import CALLER, DENSE, EXPERTS, FIX, VARIABLE
from truecast.engines.sglang.situation import Situation

MARLIN = Situation(
    version="0.5.17", model="m", quantization="modelopt_fp4", config={"num_experts": 8}, moe_backend="marlin"
)
FP4 = "sglang.srt.layers.quantization.marlin_utils_fp4"


def test_the_user_may_ask_for_atomic_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FIX.need(MARLIN) is not None
    monkeypatch.setenv(VARIABLE, "1")
    assert FIX.need(MARLIN) is None
    monkeypatch.setenv(VARIABLE, "0")
    assert FIX.need(MARLIN) is not None
    assert FIX.need(Situation(version="0.5.17", model="m", quantization="mxfp4", moe_backend="marlin")) is None


def test_the_fault_is_recognised(release: Release) -> None:
    assert FIX.faulty(release.sources)
    mended = release.edited(CALLER, "and (not is_mxfp4_marlin)", "and not (is_mxfp4_marlin or is_nvfp4_marlin)")
    assert not FIX.faulty(mended.sources)
    for gutted in (release.without(CALLER), release.edited(CALLER, "use_atomic_add = (", "adds = (")):
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


def test_dense_layers(release: Release, kernels: list[dict[str, Any]], hook_registry: Any) -> None:
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
