"""NVFP4 scales on Marlin: what the released code makes of them, and what is refused."""

from __future__ import annotations

import ast
import logging
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.conftest import Release
from tests.engines.sglang.conftest import Place
from truecast.engines.sglang import hooking
from truecast.engines.sglang.fixes.nvfp4_twins import FIX, METHOD, MODULE, check, misread
from truecast.engines.sglang.situation import Situation
from truecast.errors import RefusedError

MARLIN = Situation(
    version="0.5.17", model="m", quantization="modelopt_fp4", config={"num_experts": 8}, moe_backend="marlin"
)
FP4 = "sglang.srt.layers.quantization.marlin_utils_fp4"
DEQUANT = "sglang/kernels/jit/csrc/gemm/marlin/dequant.h"
BYTES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)


def kernel(release: Release, dtype: torch.dtype) -> Any:
    """``dequant_fp8_scales`` of the released kernel's text, on one byte: its two shifts, read from there."""
    text = release.wheel.read(DEQUANT).decode()
    name = "nv_bfloat162" if dtype == torch.bfloat16 else "half2"
    (body,) = re.findall(rf"dequant_fp8_scales<{name}, host::kFE4M3fn\.id\(\)>\(int q, [^{{]*\{{(.*?)\n\}}", text, re.S)
    (formula,) = set(re.findall(r"Out[12] = (.*);", body))
    constants = {n: int(v, 0) for n, v in re.findall(r"\b(\w+) = (0x\w+|\d+)", body)}
    if "RIGHT_SHIFT" in body:
        assert "RIGHT_SHIFT = BF16_EXPONENT - FP8_EXPONENT" in body
        constants["RIGHT_SHIFT"] = constants["BF16_EXPONENT"] - constants["FP8_EXPONENT"]

    def read(byte: int) -> float:
        half = eval(formula, {"q": byte << 8, **constants}) & 0xFFFF
        return float(torch.tensor([half], dtype=torch.int32).to(torch.uint16).view(dtype).item())

    return read


def held(release: Release, dtype: torch.dtype) -> torch.Tensor:
    """Each of the 256 E4M3 bytes through SGLang's preparation and the kernel's reading, times 2**-7."""
    scope: dict[str, Any] = {"torch": torch, "logger": SimpleNamespace(warning_once=lambda text: None)}
    release.cut(FP4, {"nvfp4_marlin_process_scales"}, scope)
    log = logging.getLogger(FP4)
    log.warning_once = lambda text: None  # type: ignore[attr-defined]
    scope["__name__"] = FP4
    prepared = scope["nvfp4_marlin_process_scales"](BYTES.to(dtype).reshape(1, 256))
    order = torch.arange(256).view(-1, 4)[:, [0, 2, 1, 3]].flatten()
    stored = torch.empty(256, dtype=torch.uint8)
    stored[order] = prepared.view(torch.uint8).flatten()
    read = kernel(release, dtype)
    return torch.tensor([read(int(byte)) * 2.0**-7 for byte in stored])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_which_block_scales_marlin_holds(release: Release, dtype: torch.dtype) -> None:
    """Every normal one exactly; with BF16 no subnormal one; no negative one and no NaN."""
    true, got = BYTES.float(), held(release, dtype)
    right = (true == got) & ~(true.isnan() | got.isnan())
    assert torch.equal(~right, misread(BYTES, dtype))
    subnormal = (BYTES.view(torch.uint8) > 0) & (BYTES.view(torch.uint8) < 8)
    assert right[subnormal].any() == (dtype == torch.float16)
    if dtype == torch.bfloat16:
        assert got[subnormal].max() < 2.0**-100  # so that the whole block is as good as zero


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_which_global_scales_marlin_holds(release: Release, dtype: torch.dtype) -> None:
    """Powers of two exactly, in the range that casts use; what else there is, is rounded to the activations' type."""
    scope: dict[str, Any] = {"torch": torch}
    release.cut(FP4, {"nvfp4_marlin_process_global_scale"}, scope)
    exponent = 8 if dtype == torch.bfloat16 else 5
    undo = 2.0 ** -(2 ** (exponent - 1) - 2 - 7)
    powers = torch.tensor([2.0**e for e in range(-60 if dtype == torch.bfloat16 else -14, 9)])
    assert torch.equal(scope["nvfp4_marlin_process_global_scale"](powers.to(dtype)).double() * undo, powers.double())
    odd = torch.tensor([1 / 2688])
    rounded = scope["nvfp4_marlin_process_global_scale"](odd.to(dtype)).double() * undo
    assert torch.equal(rounded, odd.to(dtype).double()) and rounded.item() != odd.double().item()


def test_the_fault_is_recognised(release: Release) -> None:
    assert FIX.faulty(release.sources)
    warning = 'logger.warning_once(\n                            "w1_weight_scale_2 must match'
    mended = release.edited(MODULE, warning, warning.replace("logger.warning_once", "raise ValueError"))
    assert not FIX.faulty(mended.sources)
    for gutted in (
        release.without(MODULE),
        release.edited(MODULE, "w13_weight_scale_2[:, 0]", "w13_weight_scale_2.clone()"),
    ):
        with pytest.raises(LookupError):
            FIX.faulty(gutted.sources)


def layer(twins: list[list[float]], w13: float = 1.0, w2: float = 1.0, **changes: Any) -> SimpleNamespace:
    experts = len(twins)
    made = SimpleNamespace(
        layer_id=7,
        moe_ep_rank=3,
        num_local_experts=experts,
        params_dtype=torch.bfloat16,
        moe_runner_config=SimpleNamespace(is_gated=True),
        w13_weight_scale_2=torch.tensor(twins),
        w13_weight_scale=torch.full((experts, 4, 8), 1.0).to(torch.float8_e4m3fn),
        w2_weight_scale=torch.full((experts, 4, 8), 1.0).to(torch.float8_e4m3fn),
        w13_weight=torch.full((experts, 4, 64), 0x10, dtype=torch.uint8),
        w2_weight=torch.full((experts, 4, 64), 0x10, dtype=torch.uint8),
    )
    made.w13_weight_scale[-1, 2, 5] = w13
    made.w2_weight_scale[0, 0, 0] = w2
    vars(made).update(changes)
    return made


@pytest.fixture
def method(release: Release, hook_registry: Any, place: Place) -> Any:
    """The class with the released ``process_weights_after_loading`` on Marlin; what it prepares is noted."""
    (cls,) = [n for n in ast.parse(release.sources(MODULE)).body if getattr(n, "name", None) == METHOD.split(".")[0]]
    (node,) = [n for n in cls.body if getattr(n, "name", None) == METHOD.split(".")[1]]  # type: ignore[attr-defined]
    scope: dict[str, Any] = {
        "torch": torch,
        "get_moe_runner_backend": lambda: None,
        "get_moe_a2a_backend": lambda: SimpleNamespace(is_megamoe=lambda: False),
        "_use_nvfp4_dispatch": lambda: False,
        "copy_or_rebind_param": lambda layer, name, value: setattr(layer, name, value),
        "prepare_moe_nvfp4_layer_for_marlin": lambda layer: None,
        "logger": SimpleNamespace(warning_once=lambda text: None),
    }
    exec(compile("from __future__ import annotations\n" + ast.unparse(node), MODULE, "exec"), scope)
    made = type(METHOD.split(".")[0], (), {METHOD.split(".")[1]: scope[METHOD.split(".")[1]]})
    place(MODULE, {made.__name__: made})
    instance = made()
    instance._moe_runner_backend = SimpleNamespace(  # type: ignore[attr-defined]
        value="marlin", is_marlin=lambda: True, is_lora_marlin=lambda: False
    )
    return instance


def test_stock_keeps_w1s_scale_and_the_hook_refuses(method: Any) -> None:
    stock = layer([[1.0, 1.0], [0.5, 4.0]])
    method.process_weights_after_loading(stock)
    assert stock.w13_weight_scale_2.tolist() == [1.0, 0.5]  # w3 of the second expert is off by 8
    hooking.put_on(FIX.hooks(MARLIN))
    FIX.selftest(MARLIN)
    with pytest.raises(RefusedError, match=r"layer 7, expert 7: w1 and w3 have different global scales"):
        method.process_weights_after_loading(layer([[1.0, 1.0], [0.5, 4.0]]))
    same = layer([[1.0, 1.0], [0.5, 0.5]])
    method.process_weights_after_loading(same)
    assert same.w13_weight_scale_2.tolist() == [1.0, 0.5]


def test_other_backends_are_left_alone(method: Any) -> None:
    hooking.put_on(FIX.hooks(MARLIN))
    method._moe_runner_backend = SimpleNamespace(value="flashinfer_trtllm", is_marlin=lambda: False)
    with pytest.raises(AttributeError):  # it goes on to what the other backends need, which is not here
        method.process_weights_after_loading(layer([[0.5, 4.0]]))


@pytest.mark.parametrize("scale", [2.0**-9, 7 * 2.0**-9, -1.0, float("nan")])
def test_block_scales_that_marlin_does_not_hold(scale: float) -> None:
    with pytest.raises(RefusedError, match=r"layer 7, expert 7: w13 has block scales"):
        check(layer([[1.0, 1.0], [1.0, 1.0]], w13=scale))
    with pytest.raises(RefusedError, match=r"layer 7, expert 6: w2 has block scales"):
        check(layer([[1.0, 1.0], [1.0, 1.0]], w2=scale))


def test_what_marlin_holds_passes() -> None:
    for scale in (0.0, 2.0**-6, 448.0, -0.0):
        check(layer([[1.0, 1.0]], w13=scale, w2=scale))
    check(layer([[1.0, 1.0]], w13=2.0**-9, params_dtype=torch.float16))
    check(layer([[1.0, 1.0 + 2.0**-12]]))  # the same number once it is BF16, and Marlin keeps no other
    dead = layer([[1.0, 1.0]], w13=2.0**-9)
    dead.w13_weight[0, 2, 40:48] = 0x80  # the block of that scale: zeros, of either sign
    check(dead)
    dead.w13_weight[0, 2, 47] = 0x81
    with pytest.raises(RefusedError):
        check(dead)
    one_column = layer([[1.0, 2.0]], w13_weight_scale_2=torch.tensor([1.0]))
    check(one_column)
    check(layer([[1.0, 2.0]], moe_runner_config=SimpleNamespace(is_gated=False)))


def test_many_experts_are_counted() -> None:
    twins = np.ones((20, 2), np.float32)
    twins[3:, 1] = 2
    with pytest.raises(RefusedError, match=r"expert 63, 64, 65, 66, 67, 68, 69, 70 and 9 more"):
        check(layer(twins.tolist()))
