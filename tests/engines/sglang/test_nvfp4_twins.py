"""NVFP4 scales on Marlin: what the released code makes of them, and what is refused."""

from __future__ import annotations

import ast
import logging
import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.conftest import Release
from tests.engines.sglang.conftest import Place
from truecast.engines.sglang import hooking
from truecast.engines.sglang.fixes.nvfp4_twins import EXPERTS, FIX, LINEAR, METHODS, MODULE, check_linear, misread
from truecast.engines.sglang.fixes.nvfp4_twins import check_experts as check
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
    assert FIX.faulty(mended.sources)  # linear layers and subnormal scales are still wrong
    for old in ("weight_scale_2.max()", "w13_weight_scale_2[:, 0]"):
        with pytest.raises(LookupError, match="weight_scale_2"):
            FIX.faulty(release.edited(MODULE, old, "weight_scale_2.clone()").sources)
    for gutted in (
        release.without(MODULE),
        release.without(FP4),
        release.edited(FP4, "def prepare_nv", "def other_nv"),
    ):
        with pytest.raises(LookupError):
            FIX.faulty(gutted.sources)


def test_what_prepares_nvfp4_for_marlin_is_all_that_is_hooked(release: Release) -> None:
    """No module of a release brings NVFP4 to Marlin but through the two functions."""
    for path in release.wheel.namelist():
        if path.endswith(".py") and path != release.path(FP4):
            text = release.wheel.read(path).decode()
            assert "nvfp4_marlin_process_scales" not in text and "nvfp4_marlin_process_global_scale" not in text, path


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


SCALES = "ModelOptNvFp4FusedMoEMethod", "ModelOptFp4LinearMethod", "ModelOptNvFp4A16LinearMethod"


@pytest.fixture
def methods(release: Release, hook_registry: Any, place: Place) -> Any:
    """The three classes with the released ``process_weights_after_loading``, over preparations that do nothing."""
    assert tuple(f"{name}.process_weights_after_loading" for name in SCALES) == METHODS
    prepared: list[Any] = []
    scope: dict[str, Any] = {
        "torch": torch,
        "get_moe_runner_backend": lambda: None,
        "get_fp4_gemm_runner_backend": lambda: SimpleNamespace(is_marlin=lambda: True),
        "get_moe_a2a_backend": lambda: SimpleNamespace(is_megamoe=lambda: False),
        "_use_nvfp4_dispatch": lambda: False,
        "copy_or_rebind_param": lambda layer, name, value: setattr(layer, name, value),
        "logger": SimpleNamespace(warning_once=lambda text: None, warning=lambda text: None),
    }
    place(FP4, {EXPERTS: lambda layer, group_size=None: prepared.append(layer), LINEAR: prepared.append})
    module = place(
        MODULE, {**scope, EXPERTS: sys.modules[FP4].__dict__[EXPERTS], LINEAR: sys.modules[FP4].__dict__[LINEAR]}
    )
    for owner in ast.parse(release.sources(MODULE)).body:
        if getattr(owner, "name", None) in SCALES:
            assert isinstance(owner, ast.ClassDef)
            (node,) = [n for n in owner.body if getattr(n, "name", None) == "process_weights_after_loading"]
            own: dict[str, Any] = {}
            text = "from __future__ import annotations\n" + ast.unparse(node)
            exec(compile(text, MODULE, "exec"), vars(module), own)
            setattr(module, owner.name, type(owner.name, (), dict(own)))
    experts, *linear = (getattr(module, name)() for name in SCALES)
    experts._moe_runner_backend = SimpleNamespace(is_marlin=lambda: True, is_lora_marlin=lambda: False)
    for method in linear:
        method.quant_config = SimpleNamespace(group_size=16)
        method.quant_mode = "w4a4"
    return SimpleNamespace(experts=experts, linear=linear, prepared=prepared)


def test_stock_keeps_w1s_scale_and_the_hook_refuses(methods: Any) -> None:
    stock = layer([[1.0, 1.0], [0.5, 4.0]])
    methods.experts.process_weights_after_loading(stock)
    assert stock.w13_weight_scale_2.tolist() == [1.0, 0.5]  # w3 of the second expert is off by 8
    hooking.put_on(FIX.hooks(MARLIN))
    FIX.selftest(MARLIN)
    with pytest.raises(RefusedError, match=r"layer 7, expert 7: w1 and w3 have different global scales"):
        methods.experts.process_weights_after_loading(layer([[1.0, 1.0], [0.5, 4.0]]))
    same = layer([[1.0, 1.0], [0.5, 0.5]])
    methods.experts.process_weights_after_loading(same)
    assert same.w13_weight_scale_2.tolist() == [1.0, 0.5] and methods.prepared == [stock, same]
    assert not [name for name in vars(same) if "truecast" in name]


def linear_layer(parts: list[float], scale: float = 1.0, **changes: Any) -> SimpleNamespace:
    made = SimpleNamespace(
        prefix="model.layers.3.self_attn.qkv_proj",
        params_dtype=torch.bfloat16,
        input_scale=torch.ones(len(parts)),
        weight_scale_2=torch.tensor(parts),
        weight_scale=torch.full((4, 8), 1.0).to(torch.float8_e4m3fn),
        weight=torch.full((4, 64), 0x10, dtype=torch.uint8),
    )
    made.weight_scale[1, 2] = scale
    vars(made).update(changes)
    return made


@pytest.mark.parametrize("which", [0, 1])
def test_stock_keeps_the_largest_scale_of_a_linear_layer_and_the_hook_refuses(methods: Any, which: int) -> None:
    method = methods.linear[which]
    stock = linear_layer([1.0, 0.25, 1.0])
    method.process_weights_after_loading(stock)
    assert float(stock.weight_global_scale) == 1.0  # the second part is off by 4
    hooking.put_on(FIX.hooks(MARLIN))
    with pytest.raises(RefusedError, match=r"layers\.3\.self_attn\.qkv_proj: the parts .*\[0\.25, 1\.0\]"):
        method.process_weights_after_loading(linear_layer([1.0, 0.25, 1.0]))
    for parts in ([0.5, 0.5, 0.5], [0.5], [0.5, 0.0, 1e-42], [0.5, 0.5 + 2.0**-12]):  # zeros: never loaded
        method.process_weights_after_loading(linear_layer(parts))
    with pytest.raises(RefusedError, match=r"qkv_proj: block scales \(weight_scale\) that Marlin cannot hold"):
        method.process_weights_after_loading(linear_layer([0.5], scale=2.0**-7))


def test_linear_layers_are_asked_by_whatever_brings_them_to_marlin() -> None:
    for scale in (0.0, 2.0**-6, 448.0, -0.0):
        check_linear(linear_layer([1.0], scale))
    check_linear(linear_layer([1.0], 2.0**-9, params_dtype=torch.float16))
    dead = linear_layer([1.0], 2.0**-9)
    dead.weight[1, 16:24] = 0x80
    check_linear(dead)
    nameless = linear_layer([1.0], -1.0, params_dtype=None, orig_dtype=torch.float16)
    del nameless.prefix, nameless.weight_scale_2
    with pytest.raises(RefusedError, match=r"a linear layer of 4 x 64 bytes: block scales"):
        check_linear(nameless)


def test_compressed_tensors_is_asked_too(release: Release, methods: Any, place: Place) -> None:
    """0.5.23 has it on Marlin: it stops at other global scales by itself, and not at subnormal block scales."""
    folder = "sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_w4a16_nvfp4"
    if release.version != "0.5.23":
        for path in release.wheel.namelist():
            if "/compressed_tensors/" in path and path.endswith(".py"):
                assert "nvfp4_layer_for_marlin" not in release.wheel.read(path).decode()
        return
    scope = {
        "torch": torch, LINEAR: sys.modules[FP4].__dict__[LINEAR], "_use_flashinfer_bf16_fp4": lambda dtype: False,
        "copy_or_rebind_param": lambda layer, name, value: setattr(layer, name, value),
    }  # fmt: skip
    linear = release.cut(folder, {"process_weights_after_loading"}, vars(place(folder, scope)))
    experts = release.cut(f"{folder}_moe", {"process_weights_after_loading"}, {"torch": torch})
    scheme = SimpleNamespace(has_input_global_scale=False, group_size=16)

    def process(scale: float, parts: tuple[float, float] = (1.0, 1.0)) -> None:
        made = linear_layer([], scale, weight_global_scale=torch.tensor(parts))
        made.weight_packed = made.weight
        del made.weight, made.weight_scale_2
        linear["process_weights_after_loading"](scheme, made)

    def process_experts(scale: float, parts: tuple[float, float] = (1.0, 1.0)) -> None:
        made = layer([[1.0, 1.0]], scale, hidden_size=128, intermediate_size_per_partition=64)
        made.w13_weight_packed, made.w2_weight_packed = made.w13_weight, made.w2_weight
        made.w13_weight_global_scale, made.w2_weight_global_scale = torch.tensor([parts]), torch.ones(1)
        del made.w13_weight, made.w2_weight, made.w13_weight_scale_2
        experts["process_weights_after_loading"](scheme, made)

    for each in (process, process_experts):
        each(2.0**-9)  # stock lets it pass
        with pytest.raises(ValueError, match=r"NVFP4 weight-only .*weight_global_scale"):
            each(1.0, (1.0, 2.0))
    hooking.put_on(FIX.hooks(MARLIN))
    for each in (process, process_experts):
        each(1.0)
        with pytest.raises(RefusedError, match="block scales"):
            each(2.0**-9)


def test_minimax_keeps_gates_scale_with_a_warning_and_the_hook_refuses(release: Release, methods: Any) -> None:
    module = "sglang.srt.layers.quantization.minimax_m3_nvfp4"
    if release.version != "0.5.23":
        with pytest.raises(LookupError):
            release.sources(module)
        return
    scope = {"torch": torch, "logger": SimpleNamespace(warning_once=lambda text: None)}
    prepare = release.cut(module, {"_process_marlin_weights"}, scope)["_process_marlin_weights"]

    def made() -> SimpleNamespace:
        bank = layer([[1.0, 1.0]], register_parameter=lambda name, value: None)
        bank.w13_weight_packed, bank.w2_weight_packed = bank.w13_weight, bank.w2_weight
        bank.w13_weight_global_scale, bank.w2_weight_global_scale = torch.tensor([[1.0, 4.0]]), torch.ones(1)
        return bank

    prepare(None, made())
    assert methods.prepared[-1].w13_weight_scale_2.tolist() == [1.0]
    hooking.put_on(FIX.hooks(MARLIN))
    with pytest.raises(RefusedError, match="w1 and w3 have different global scales"):
        prepare(None, made())


def test_other_backends_are_left_alone(methods: Any) -> None:
    hooking.put_on(FIX.hooks(MARLIN))
    methods.experts._moe_runner_backend = SimpleNamespace(is_marlin=lambda: False, is_lora_marlin=lambda: False)
    with pytest.raises(AttributeError):  # it goes on to what the other backends need, which is not here
        methods.experts.process_weights_after_loading(layer([[0.5, 4.0]]))
    assert not methods.prepared


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
