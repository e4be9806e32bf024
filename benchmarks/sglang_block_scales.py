"""NVFP4 on Marlin with block scales moved down: how many outputs change? ``python -m benchmarks.sglang_block_scales``

The same weights as MXFP4 and as NVFP4, prepared and run by SGLang's own code, in one MoE layer with SiTU. All block scales of
the NVFP4 form are 2**(8 - down), its global scales make up for that. Marlin keeps E2M1's exponent bias in the sums and takes
it out with the global scale at the end, so a sum below global scale / 128 is a BF16 subnormal before it is scaled. For each
``down``: which share of the outputs has other bits than MXFP4's, the largest difference to the largest output, and what part
of the first matrix's sums is that small by a float32 product. Needs a GPU and SGLang with its kernels; ``--device cpu`` is a
dry run in which the kernels are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.sglang_marlin_tile import without_kernels
from truecast.engines.sglang.fixes import marlin_ep_tile, marlin_repeatable

EXPERTS, K, N, TOPK, TOKENS = 16, 1024, 512, 4, 64
TOP, LOW = 8, -6
"""Exponents of the largest and the smallest normal block scale that is a power of two."""
WEIGHT = -6
"""A code c is the weight c * 2**WEIGHT."""
SIZES = (1.0, 2.0**-3, 2.0**-6)
"""Of the activations, root mean square."""
CODES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FP4 = "sglang.srt.layers.quantization.marlin_utils_fp4"


def stored(device: str) -> dict[str, torch.Tensor]:
    """Codes as checkpoints hold them, two in a byte."""
    return {
        "w13_weight": torch.randint(256, (EXPERTS, 2 * N, K // 2), dtype=torch.uint8, device=device),
        "w2_weight": torch.randint(256, (EXPERTS, K, N // 2), dtype=torch.uint8, device=device),
    }


def _layer(codes: dict[str, torch.Tensor], block: int, scale: torch.Tensor) -> torch.nn.Module:
    layer = torch.nn.Module()
    for name, code in codes.items():
        layer.register_parameter(name, torch.nn.Parameter(code.clone(), requires_grad=False))
        full = scale.to(code.device).expand(*code.shape[:2], code.shape[2] * 2 // block).contiguous()
        layer.register_parameter(f"{name}_scale", torch.nn.Parameter(full, requires_grad=False))
    layer.orig_dtype = layer.params_dtype = torch.bfloat16
    return layer


def mxfp4(codes: dict[str, torch.Tensor], module: Any) -> dict[str, Any]:
    """Arguments of ``fused_marlin_moe``."""
    layer = _layer(codes, 32, torch.tensor(127 + WEIGHT, dtype=torch.uint8))
    module.prepare_moe_mxfp4_layer_for_marlin(layer)
    zero = torch.zeros((), dtype=torch.bfloat16, device=codes["w2_weight"].device)
    return {**_common(layer), "w1_bias": zero.expand(EXPERTS, 2 * N).contiguous(),
            "w2_bias": zero.expand(EXPERTS, K).contiguous()}  # fmt: skip


def nvfp4(codes: dict[str, torch.Tensor], module: Any, down: int) -> dict[str, Any]:
    """Arguments of ``fused_marlin_moe``; every block scale is ``2**(TOP - down)``."""
    layer = _layer(codes, 16, torch.tensor(2.0 ** (TOP - down)).to(torch.float8_e4m3fn))
    for name, code in codes.items():
        scale = torch.full((EXPERTS,), 2.0 ** (WEIGHT - TOP + down), device=code.device)
        layer.register_parameter(f"{name}_scale_2", torch.nn.Parameter(scale, requires_grad=False))
    layer.quant_config = SimpleNamespace(group_size=16)
    layer.moe_runner_config = SimpleNamespace(is_gated=True)
    layer.intermediate_size_per_partition = N
    module.prepare_moe_nvfp4_layer_for_marlin(layer)
    scales = {"w1_global_scale": layer.w13_weight_scale_2, "w2_global_scale": layer.w2_weight_scale_2}
    return {**_common(layer), **scales}


def _common(layer: Any) -> dict[str, Any]:
    return {"w1": layer.w13_weight, "w2": layer.w2_weight, "w1_scale": layer.w13_weight_scale,
            "w2_scale": layer.w2_weight_scale, "workspace": layer.workspace}  # fmt: skip


def small(codes: torch.Tensor, x: torch.Tensor, ids: torch.Tensor, down: int) -> float:
    """Share of the first matrix's sums (float32, no zeros among them) below global scale / 128."""
    table = CODES.to(codes.device) * 2.0**WEIGHT
    low, high = table[(codes & 15).long()], table[(codes >> 4).long()]
    weight = torch.stack([low, high], -1).flatten(-2)  # [E, 2N, K]
    sums = torch.einsum("tk,enk->ten", x.float(), weight)
    chosen = sums[torch.arange(len(x), device=x.device)[:, None], ids.long()].abs()
    return float(((chosen < 2.0 ** (WEIGHT - TOP + down - 7)) & (chosen > 0)).float().mean())


def main() -> int:
    """Print the table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    device = parser.parse_args().device
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    module, prepare = importlib.import_module(marlin_repeatable.CALLER), importlib.import_module(FP4)
    if device == "cpu":
        from truecast.engines.sglang.source import installed

        without_kernels(module)
        call = marlin_ep_tile.rebuilt(installed(), vars(module), 0)  # the operator itself exists on a GPU only
        prepare.marlin_make_workspace = lambda *args: torch.zeros(8, dtype=torch.int32)
        prepare.gptq_marlin_repack = lambda b_q_weight, size_k, size_n, **more: b_q_weight.reshape(
            size_k // 16, size_n * 2
        )
    else:
        print(torch.cuda.get_device_name(), "torch", torch.__version__)
        call = getattr(module, marlin_ep_tile.NAME)
        module.moe_wna16_marlin_gemm = partial(marlin_repeatable.experts, module.moe_wna16_marlin_gemm)
    codes = stored(device)
    ids = torch.rand(TOKENS, EXPERTS, device=device).topk(TOPK, dim=1).indices.int().contiguous()
    shared = {
        "gating_output": torch.empty(TOKENS, EXPERTS, device=device),
        "topk_weights": torch.full((TOKENS, TOPK), 1 / TOPK, device=device),
        "topk_ids": ids,
        "num_bits": 4,
        "activation": "situ",
        "gemm1_alpha": 4.0,
        "clamp_limit": 25.0,
    }
    native = mxfp4(codes, prepare)
    moved = {down: nvfp4(codes, prepare, down) for down in range(TOP - LOW + 1)}
    rows: list[dict[str, Any]] = []
    print(
        "activations | down, block scale, global scale | other bits % | largest difference / largest output | small sums %"
    )
    for size in SIZES:
        x = (torch.randn(TOKENS, K, device=device) * size).bfloat16()
        wanted = call(hidden_states=x, **native, **shared).float()
        again = call(hidden_states=x, **native, **shared).float()
        for down, given in moved.items():
            got = call(hidden_states=x, **given, **shared).float()
            row = {
                "activations": size,
                "down": down,
                "other_bits": float((got != wanted).float().mean()),
                "error": float((got - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)),
                "small": small(codes["w13_weight"], x, ids, down),
                "repeats": torch.equal(wanted, again),
            }
            rows.append(row)
            print(f"{size:11.4f} | {down:2}  2^{TOP - down:<3} 2^{WEIGHT - TOP + down:<4} | {100 * row['other_bits']:8.4f} "
                  f"| {row['error']:.2e} | {100 * row['small']:8.4f}", flush=True)  # fmt: skip
    print(json.dumps({"benchmark": "sglang_block_scales", "device": device, "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
