"""The kernel of KDA that is compiled after loading: its released function, asked with the dtype of FP8 weights."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engines.conftest import Release
from tests.engines.sglang.conftest import Place
from truecast.engines.sglang import hooking
from truecast.engines.sglang.fixes.kda_precompile import CALLER, FIX, FUNCTION, MODULE
from truecast.engines.sglang.situation import Situation

K3 = Situation(version="0.5.17", model="k3", quantization="w4afp8", config={"linear_attn_config": {}})
WEIGHT = "dtype=layer.self_attn.o_proj.weight.dtype,"


def test_it_is_wanted_for_fp8_with_kda() -> None:
    need = FIX.need(K3)
    assert need is not None and not need.required
    assert FIX.need(replace(K3, quantization="mxfp4")) is None
    assert FIX.need(replace(K3, quantization=None)) is None
    assert FIX.need(replace(K3, config={})) is None


def test_the_fault_is_recognised(release: Release) -> None:
    faulty = release.version == "0.5.17"
    assert FIX.faulty(release.sources) == faulty
    if faulty:
        assert not FIX.faulty(release.edited(CALLER, WEIGHT, "dtype=self.model.dtype,").sources)
    for gutted in (release.without(CALLER), release.edited(CALLER, FUNCTION, "another")):
        with pytest.raises(LookupError):
            FIX.faulty(gutted.sources)


def test_the_kernel_is_compiled_for_what_it_is_called_with(release: Release, hook_registry: Any, place: Place) -> None:
    compiled: list[torch.dtype] = []
    fake = SimpleNamespace(
        device=lambda device: SimpleNamespace(type="cuda"),
        cuda=SimpleNamespace(get_device_capability=lambda device: (9, 0)),
        zeros=lambda shape, dtype, device: torch.zeros(shape, dtype=dtype),
        zeros_like=torch.zeros_like,
        tensor=lambda values, dtype, device: torch.tensor(values, dtype=dtype),
        inference_mode=torch.inference_mode,
        dtype=torch.dtype,
        float32=torch.float32,
        int64=torch.int64,
    )
    scope: dict[str, Any] = {
        "torch": fake,
        "is_nvidia": True,
        "_K3_RECOMPUTE_W_U_CONFIGS": {(9, 0): {}},
        "recompute_w_u_fwd": lambda k, v, beta, a, **more: compiled.append(k.dtype),
    }
    release.cut(MODULE, {FUNCTION}, scope)
    module = place(MODULE, scope)
    given: dict[str, Any] = {"num_heads": 2, "device": "cuda"}
    assert getattr(module, FUNCTION)(dtype=torch.float8_e4m3fn, **given)
    hooking.put_on(FIX.hooks(K3))
    FIX.selftest(K3)
    for dtype in (torch.float8_e4m3fn, torch.bfloat16):
        assert getattr(module, FUNCTION)(dtype=dtype, **given)
    assert compiled == [torch.float8_e4m3fn, torch.bfloat16, torch.bfloat16]
