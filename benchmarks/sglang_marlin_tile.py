"""Marlin's tile on one of 32 ranks of Kimi-K3, SGLang's own function and kernels. ``python -m benchmarks.sglang_marlin_tile``

28 local experts of 896, 16 chosen per token, 3584 in, 3072 between, native MXFP4. Needs a GPU and SGLang 0.5.17 with its
kernels (a cache of compiled ones in TVM_FFI_CACHE_DIR saves minutes). Each number of tokens is timed with the tile that
stock SGLang takes, with the fix's, and with all tiles; outputs of stock and fix are compared. ``--device cpu`` is a dry
run in which the kernels are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.cuda_graph_time import microseconds
from truecast.engines.sglang.fixes import marlin_ep_tile as fix
from truecast.engines.sglang.source import installed

EXPERTS, RANKS, TOPK = 896, 32, 16
K, N = 3584, 3072
TOKENS = (20, 32, 50, 64, 96, 128, 150, 192, 200, 512)


def weights(local: int, k: int, n: int, device: str) -> dict[str, Any]:
    """Random MXFP4 codes in Marlin's layout, with scales near 2**-5, so that nothing overflows."""

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device=device)

    def scales(*shape: int) -> torch.Tensor:
        raw = torch.randint(120, 125, shape, dtype=torch.uint8, device=device)
        return raw.view(torch.float8_e8m0fnu)

    return {
        "w1": codes(local, k // 16, 2 * n * 2),
        "w2": codes(local, n // 16, k * 2),
        "w1_scale": scales(local, k // 32, 2 * n),
        "w2_scale": scales(local, n // 32, k),
        "w1_bias": torch.zeros(local, 2 * n, dtype=torch.bfloat16, device=device),
        "w2_bias": torch.zeros(local, k, dtype=torch.bfloat16, device=device),
    }


def tokens(rows: int, k: int, device: str) -> dict[str, Any]:
    """Activations and their routes: this rank's experts by local number, others ``-1``."""
    local = EXPERTS // RANKS
    chosen = torch.rand(rows, EXPERTS, device=device).topk(TOPK, dim=1).indices.int()
    table = torch.full((EXPERTS,), -1, dtype=torch.int32, device=device)
    table[:local] = torch.arange(local, dtype=torch.int32, device=device)
    return {
        "hidden_states": torch.randn(rows, k, device=device).bfloat16(),
        "gating_output": torch.empty(rows, EXPERTS, device=device),
        "topk_weights": torch.full((rows, TOPK), 1 / TOPK, device=device),
        "topk_ids": table[chosen.long()].contiguous(),
        "global_num_experts": EXPERTS,
        "expert_map": table,
    }


def without_kernels(module: Any) -> None:
    """For a dry run: nothing is computed, shapes flow."""
    package = importlib.import_module("sglang.srt.layers.moe.fused_moe_triton")
    zero = torch.zeros(8, dtype=torch.int32)
    package.moe_align_block_size = lambda ids, tile, experts: (zero, zero, zero)
    module.moe_wna16_marlin_gemm = lambda a, c, *args, **kwargs: c
    module.situ_and_mul = lambda output, x, **kwargs: output.zero_()
    module.get_scalar_type = lambda *args: None
    module.moe_sum_reduce = lambda x, out, factor: out.copy_(x.sum(1))
    module.register_custom_op = lambda **kwargs: lambda function: function
    summed = importlib.import_module("sglang.kernels.ops.moe.moe_topk_sum")
    summed.moe_topk_sum = lambda x, out: out.copy_(x.sum(1))
    torch.cuda.get_device_capability = lambda *args: (9, 0)


def main() -> int:
    """Print the table and one line of JSON. Returns 1 if the outputs of stock and fix differ by more than rounding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    device = parser.parse_args().device
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    module = importlib.import_module(fix.MODULE)
    local, k, n = (EXPERTS // RANKS, K, N) if device == "cuda" else (EXPERTS // RANKS, 256, 128)
    if device == "cpu":
        without_kernels(module)
        stock = fix.rebuilt(installed(), vars(module), 0)  # the operator itself exists on a GPU only
        workspace = torch.zeros(8, dtype=torch.int32)
    else:
        from sglang.srt.layers.quantization.marlin_utils import marlin_make_workspace

        print(torch.cuda.get_device_name(), "torch", torch.__version__)
        stock = getattr(module, fix.NAME)
        workspace = marlin_make_workspace(torch.device(device), max_blocks_per_sm=4)
    fixed = SimpleNamespace(tile=0)
    ours = fix.rebuilt(installed(), vars(module), 0)
    vars(module)[fix._CHOICE] = lambda *args: fix.tile(*args, fixed=fixed.tile)
    layer = {**weights(local, k, n, device), "workspace": workspace, "num_bits": 4, "activation": "situ"}
    layer |= {"gemm1_alpha": 4.0, "clamp_limit": 25.0}

    rows, bad = [], 0
    head = f"{'tokens':>6} {'rows here':>9} | stock: tile     us | fix: tile     us  speed-up | us by tile: "
    print(head + "".join(f"{t:8}" for t in fix.TILES))
    for count in TOKENS if device == "cuda" else TOKENS[:2]:
        given = {**layer, **tokens(count, k, device)}
        here = int((given["topk_ids"] >= 0).sum())
        fixed.tile = 0
        a, b = stock(**given).float(), ours(**given).float()
        error = float((a - b).norm() / a.norm().clamp_min(1e-30))
        stock_us = microseconds(lambda: stock(**given), device)  # noqa: B023
        ours_us = microseconds(lambda: ours(**given), device)  # noqa: B023
        by_tile = {}
        for fixed.tile in fix.TILES:
            by_tile[fixed.tile] = microseconds(lambda: ours(**given), device)  # noqa: B023
        tiles = (
            next((t for t in fix.TILES if count * TOPK / local / t < 0.9), 64),
            fix.tile(0, count, TOPK, local, 1, EXPERTS),
        )
        bad += not error < 1e-2
        rows.append({"tokens": count, "rows": here, "tiles": tiles, "stock_us": stock_us, "fix_us": ours_us,
                     "by_tile_us": by_tile, "relative_difference": error})  # fmt: skip
        print(f"{count:6} {here:9} | {tiles[0]:11} {stock_us:6.1f} | {tiles[1]:9} {ours_us:6.1f} {stock_us / ours_us:8.2f}x |"
              + " " * 13 + "".join(f"{by_tile[t]:8.1f}" for t in fix.TILES) + f"   difference {error:.1e}")  # fmt: skip
    print(json.dumps({"benchmark": "sglang_marlin_tile", "device": device, "rows": rows}))
    return 1 if bad and device == "cuda" else 0


if __name__ == "__main__":
    raise SystemExit(main())
