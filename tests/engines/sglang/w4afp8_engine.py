"""SGLang's own W4AFP8 code, importable under its own names on a CPU, its GPU kernels stood in for by PyTorch.

Real, from the wheel: the config, the expert and linear methods, ``FusedMoE`` with its loaders, the three
``cutlass_w4a8_moe`` functions, and the Python around SiLU and FP8 quantization. The stand-ins do what the kernels do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engines.conftest import Release
from tests.engines.sglang_k3 import LAYERS, Runtime
from truecast.engines.sglang.fixes.situ_w4afp8 import DYNAMIC, EXPERTS, KERNELS, MASKED, STATIC
from truecast.engines.sglang.fixes.w4afp8_config import AMAX

E4M3 = torch.float8_e4m3fn
WAYS = ("cutlass_w4a8_moe", "cutlass_w4a8_moe_deepep_normal", "cutlass_w4a8_moe_deepep_ll")


class Kernel:
    """Called as a Triton kernel is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __getitem__(self, grid: object) -> Callable[..., Any]:
        return self.function


def install(release: Release, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """Put the modules in place; ``hook_registry`` must have been asked for before. Returns SGLang's classes."""
    runtime = Runtime(release.wheel, LAYERS)
    scope = runtime.scope

    def module(name: str, **names: Any) -> ModuleType:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                made = ModuleType(path)
                made.__path__ = []
                monkeypatch.setitem(sys.modules, path, made)
        vars(sys.modules[name]).update(names)
        return sys.modules[name]

    layers = "sglang.srt.layers."
    module(layers + "quantization.w4afp8", **{n: scope[n] for n in ("W4AFp8Config", "W4AFp8MoEMethod")})
    module(layers + "linear", LinearBase=scope["LinearBase"])
    module(layers + "moe.fused_moe_triton", FusedMoE=scope["FusedMoE"])
    module(layers + "quantization.unquant", UnquantizedLinearMethod=scope["UnquantizedLinearMethod"])
    module(layers + "moe.utils", get_moe_a2a_backend=lambda: SimpleNamespace(is_none=lambda: runtime.a2a == "none"))
    module("sglang.srt.eplb.expert_location", get_global_expert_location_metadata=lambda: None)
    module("sglang.srt.runtime_context", get_server_args=lambda: SimpleNamespace(load_format=runtime.load_format))
    scope |= {"a2a": "none", "load_format": "auto"}
    kernels = module(KERNELS, **_kernels(release))
    stand_ins = _stand_ins()
    quantization = AMAX.rpartition(".")
    module(quantization[0], **{quantization[2]: stand_ins["per_tensor_absmax_fp8"]})
    experts = module(EXPERTS, **stand_ins, **{n: getattr(kernels, n) for n in (STATIC, DYNAMIC, MASKED)})
    release.cut(EXPERTS, set(WAYS), vars(experts))
    for name in WAYS:  # what the methods import when they are called
        scope[name] = _late(experts, name)
    scope["StandardCombineInput"] = SimpleNamespace
    return runtime


def apply(registry: Any, hooks: Any) -> None:
    """Put hooks on through the release's own registry."""
    hook_type = sys.modules["sglang.srt.plugins.hook_registry"].HookType
    for hook in hooks:
        registry.register(hook.target, hook.function, hook_type(hook.kind.value))
    registry.apply_hooks()
    assert {hook.target for hook in hooks} <= registry._patched


def bank(runtime: Runtime, config: Any, activation: str = "situ", experts: int = 4, **more: Any) -> Any:
    """An expert bank as Kimi-K3 builds it, its parameters not yet loaded."""
    return runtime.FusedMoE(
        num_experts=experts, hidden_size=256, intermediate_size=128, layer_id=0, top_k=2, quant_config=config,
        prefix="model.layers.1.mlp.experts", params_dtype=torch.bfloat16, activation=activation, gemm1_alpha=4.0,
        gemm1_clamp_limit=25.0, gate_up_interleaved=False, routed_scaling_factor=1.0, **more,
    )  # fmt: skip


def _late(module: ModuleType, name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(module, name)(*args, **kwargs)


def silu(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.float().chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


def _kernels(release: Release) -> dict[str, Any]:
    """SGLang's Python around the kernels that activate and quantize, over SiLU in PyTorch."""

    def static(input_ptr: Any, output_ptr: Any, scale_ptr: Any, num_tokens_tensor_ptr: Any, **_: Any) -> None:
        rows = int(num_tokens_tensor_ptr)
        output_ptr[:rows] = (silu(input_ptr[:rows]) / scale_ptr).clamp(-448, 448).to(E4M3)

    def dynamic(input_ptr: Any, scale_ptr: Any, num_tokens_tensor_ptr: Any, **_: Any) -> None:
        scale_ptr.copy_(silu(input_ptr[: int(num_tokens_tensor_ptr)]).abs().max().clamp(1e-10) / 448)

    def masked(*args: Any, **_: Any) -> None:
        given, out, scale, counts = args[0], args[4], args[8], args[9]
        for expert, rows in enumerate(counts.tolist()):
            out[expert, :rows] = (silu(given[expert, :rows]) / scale).clamp(-448, 448).to(E4M3)

    scope: dict[str, Any] = {
        "torch": torch,
        "triton": SimpleNamespace(cdiv=lambda a, b: -(-a // b)),
        "_get_launch_config_1d": lambda *_: ((1,), 1024),
        "silu_mul_dynamic_scale_triton_kernel_for_cutlass_moe": Kernel(dynamic),
        "silu_mul_static_tensorwise_quant_triton_kernel_for_cutlass_moe": Kernel(static),
        "_silu_and_mul_post_per_tensor_quant_kernel": Kernel(masked),
    }
    return release.cut(KERNELS, {STATIC, DYNAMIC, MASKED}, scope)


def _weights(w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``[E, N, K]`` of packed codes and scales in the kernel's order."""
    low = (w.view(torch.uint8) & 15).to(torch.int8)
    high = (w.view(torch.uint8) >> 4).to(torch.int8)
    codes = torch.stack([low, high], -1).flatten(-2)
    codes = torch.where(codes > 7, codes - 16, codes).float()
    experts, rows, cols = codes.shape
    step = scale.shape[2] // rows
    order = scale.reshape(experts, -1, rows, step).permute(0, 2, 1, 3).reshape(experts, rows, cols // 128)
    return codes * order.float().repeat_interleave(128, -1)


def _stand_ins() -> dict[str, Any]:
    def mm(c: Any, a: Any, w: Any, a_scale: Any, w_scale: Any, offsets: Any, sizes: Any, *_: Any) -> None:
        weights = _weights(w, w_scale)
        for expert, count in enumerate(sizes[:, 1].tolist()):
            start = 0 if c.ndim == 3 else int(offsets[expert])
            out, given = (c[expert], a[expert]) if c.ndim == 3 else (c, a)
            rows = slice(start, start + count)
            out[rows] = (given[rows].float() @ weights[expert].T * a_scale).to(c.dtype)

    def data(
        topk_ids: Any, offsets: Any, sizes1: Any, sizes2: Any, _a: Any, _c: Any, experts: int, n: int, k: int
    ) -> None:
        ids = topk_ids.flatten().long()
        counts = torch.bincount(ids[(ids >= 0) & (ids < experts)], minlength=experts)
        offsets[0] = 0
        offsets[1:] = counts.cumsum(0)
        for sizes, left, right in ((sizes1, 2 * n, k), (sizes2, k, n)):
            sizes[:, 0], sizes[:, 1], sizes[:, 2] = left, counts, right

    def data_ll(masked_m: Any, sizes1: Any, sizes2: Any, experts: int, n: int, k: int) -> Any:
        for sizes, left, right in ((sizes1, 2 * n, k), (sizes2, k, n)):
            sizes[:, 0], sizes[:, 1], sizes[:, 2] = left, masked_m, right
        return sizes1, sizes2

    def places(topk_ids: Any) -> torch.Tensor:
        order = torch.sort(topk_ids.flatten(), stable=True).indices
        return torch.empty_like(order).scatter_(0, order, torch.arange(order.numel())) - int((topk_ids == -1).sum())

    def deepep_places(topk_ids: Any, _: int) -> Any:
        return topk_ids.flatten(), places(topk_ids), None

    def quantized(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x.float() / scale).clamp(-448, 448).to(E4M3)

    def pre(a: Any, out: Any, src2dst: Any, ids: Any, scale: Any, experts: int, topk: int, *_: Any) -> None:
        for i, (expert, place) in enumerate(zip(ids.flatten().tolist(), src2dst.tolist(), strict=True)):
            if 0 <= expert != experts:
                out[place] = quantized(a[i // topk], scale)

    def post(
        c: Any, out: Any, src2dst: Any, ids: Any, shares: Any, experts: int, topk: int, _m: int, _k: int, by: float
    ) -> None:
        total = torch.zeros(out.shape)
        for i, (expert, place) in enumerate(zip(ids.flatten().tolist(), src2dst.tolist(), strict=True)):
            if 0 <= expert != experts:
                total[i // topk] += c[place].float() * shares.flatten()[i]
        out.copy_(total * by)

    def deepep_permute(a: Any, out: Any, src2dst: Any, ids: Any, _: Any, topk: int, *__: Any, **___: Any) -> None:
        for i, (expert, place) in enumerate(zip(ids.flatten().tolist(), src2dst.tolist(), strict=True)):
            if expert >= 0:
                out[place] = a[i // topk]

    def deepep_post(c: Any, out: Any, src2dst: Any, ids: Any, shares: Any, topk: int, *_: Any, **__: Any) -> None:
        post(c, out, src2dst, ids, shares, -1, topk, 0, 0, 1.0)

    def per_token(x: Any, x_scale: Any, masked_m: Any, output_scale: Any, output: Any, **_: Any) -> None:
        output.copy_(quantized(x.float() * x_scale.repeat_interleave(128, -1), output_scale))

    def amax(a: Any, scale: Any) -> None:
        scale.copy_(a.float().abs().max() / 448)

    def floored(input: Any, output_s: Any, **_: Any) -> None:  # it begins with the least scale and takes the larger
        output_s.copy_(torch.maximum(output_s, input.float().abs().max() / 448))

    return {
        "torch": torch,
        "_is_cuda": False,
        "get_parallel": lambda: SimpleNamespace(moe_ep_size=2),
        "cutlass_w4a8_moe_mm": mm,
        "get_cutlass_w4a8_moe_mm_data": data,
        "deepep_ll_get_cutlass_w4a8_moe_mm_data": data_ll,
        "cutlass_w4_run_moe_ep_preproess": places,
        "pre_reorder_for_cutlass_moe": pre,
        "post_reorder_for_cutlass_moe": post,
        "per_tensor_absmax_fp8": amax,
        "compute_cutlass_w4a8_moe_input_scale": floored,
        "deepep_run_moe_deep_preprocess": deepep_places,
        "deepep_permute_triton_kernel": Kernel(deepep_permute),
        "deepep_post_reorder_triton_kernel": Kernel(deepep_post),
        "fp8_per_token_to_per_tensor_quant_triton": per_token,
        "per_tensor_quant_fp8": lambda x, out, scale, static: out.copy_(quantized(x, scale)),
        "silu_and_mul": lambda x, out: out.copy_(silu(x)),
    }
