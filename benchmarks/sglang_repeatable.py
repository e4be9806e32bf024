"""Does Marlin's MoE give the same bits twice, and what does that cost? ``python -m benchmarks.sglang_repeatable``

Kimi-K3's experts on one of 16 tensor-parallel ranks: 896 experts, 16 chosen per token, 3584 in, 192 between, MXFP4 and NVFP4,
through SGLang's own ``fused_marlin_moe``. Each form is called repeatedly on the same numbers: how many outputs differ from the
first, and the time of a call from a CUDA graph. ``stock``: as SGLang runs it. ``no atomics``: without atomic adds. ``order``:
each expert's routes in order besides, which is what the fix ``marlin-repeatable`` does. Needs a GPU and SGLang with its
kernels; ``--device cpu`` is a dry run in which the kernels are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
from functools import partial
from typing import Any

import torch

from benchmarks.cuda_graph_time import microseconds
from benchmarks.sglang_marlin_tile import TOPK, weights, without_kernels
from truecast.engines.sglang.fixes import marlin_ep_tile, marlin_repeatable

EXPERTS, K, N = 896, 3584, 192
TOKENS = (8, 150, 512, 4096)
CALLS = 12
FP4 = "sglang.srt.layers.quantization.marlin_utils_fp4"


def nvfp4(layer: dict[str, Any], device: str) -> dict[str, Any]:
    """The same codes with scales of 16 values, 2**-1 to 2**2, and one global scale an expert, by SGLang's preparation."""
    prepare = importlib.import_module(FP4)
    out = {name: tensor for name, tensor in layer.items() if "bias" not in name}
    for name in ("w1", "w2"):
        experts, groups, columns = layer[f"{name}_scale"].shape
        scales = torch.exp2(torch.randint(-1, 3, (experts * 2 * groups, columns), device=device)).bfloat16()
        out[f"{name}_scale"] = prepare.nvfp4_marlin_process_scales(scales).reshape(experts, 2 * groups, columns)
        single = torch.full((experts,), 2.0**-6, dtype=torch.bfloat16, device=device)
        out[f"{name}_global_scale"] = prepare.nvfp4_marlin_process_global_scale(single)
    return out


def main() -> int:
    """Print the table and one line of JSON. Returns 1 if the form that the fix makes does not repeat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    device = parser.parse_args().device
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    module = importlib.import_module(marlin_repeatable.CALLER)
    package = importlib.import_module(marlin_repeatable.ALIGN.rpartition(".")[0])
    experts, k, n = (EXPERTS, K, N) if device == "cuda" else (28, 256, 128)
    if device == "cpu":
        without_kernels(module)
        from truecast.engines.sglang.source import installed

        call = marlin_ep_tile.rebuilt(installed(), vars(module), 0)  # the operator itself exists on a GPU only
        workspace = torch.zeros(8, dtype=torch.int32)
    else:
        from sglang.srt.layers.quantization.marlin_utils import marlin_make_workspace

        print(torch.cuda.get_device_name(), "torch", torch.__version__)
        call = getattr(module, marlin_ep_tile.NAME)
        workspace = marlin_make_workspace(torch.device(device), max_blocks_per_sm=4)
    align, gemm = package.moe_align_block_size, module.moe_wna16_marlin_gemm
    forms = {
        "stock": (align, gemm),
        "no atomics": (align, partial(marlin_repeatable.experts, gemm)),
        "order": (partial(marlin_repeatable.in_order, align), partial(marlin_repeatable.experts, gemm)),
    }
    mxfp4 = weights(experts, k, n, device)
    rows: list[dict[str, Any]] = []
    print(
        f"{'format':>6} {'tokens':>6} | others of {CALLS}: {'  '.join(forms)} | us: {'  '.join(forms)} | order alone, us"
    )
    for name, layer in (("mxfp4", mxfp4), ("nvfp4", nvfp4(mxfp4, device))):
        for count in TOKENS if device == "cuda" else TOKENS[:2]:
            ids = torch.rand(count, experts, device=device).topk(TOPK, dim=1).indices.int().contiguous()
            given = {
                **layer,
                "hidden_states": torch.randn(count, k, device=device).bfloat16(),
                "gating_output": torch.empty(count, experts, device=device),
                "topk_weights": torch.full((count, TOPK), 1 / TOPK, device=device),
                "topk_ids": ids,
                "workspace": workspace,
                "num_bits": 4,
                "activation": "situ",
                "gemm1_alpha": 4.0,
                "clamp_limit": 25.0,
            }
            row: dict[str, Any] = {"format": name, "tokens": count, "other": {}, "us": {}}
            for form, (package.moe_align_block_size, module.moe_wna16_marlin_gemm) in forms.items():
                first = call(**given).clone()
                row["other"][form] = sum(not torch.equal(call(**given), first) for _ in range(CALLS))
                row["us"][form] = microseconds(lambda: call(**given), device, 10)  # noqa: B023
            tile = 8 if count * TOPK / experts < 7.2 else 64
            both = [microseconds(lambda f=f: f(ids, tile, experts), device) for f in (align, forms["order"][0])]  # noqa: B023
            row["align_us"], row["align_in_order_us"] = both
            rows.append(row)
            told = "  ".join(f"{row['other'][form]:5}" for form in forms)
            times = "  ".join(f"{row['us'][form]:8.1f}" for form in forms)
            print(f"{name:>6} {count:6} | {told} | {times} | {both[1] - both[0]:.1f}", flush=True)
    print(json.dumps({"benchmark": "sglang_repeatable", "device": device, "rows": rows}))
    return int(device == "cuda" and any(row["other"]["order"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
