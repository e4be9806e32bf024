"""NVFP4 on Marlin with global scales that differ by expert: MXFP4's bits? ``python -m benchmarks.sglang_global_scales``

The same weights as MXFP4 and as NVFP4 whose global scales are 2**-12 for all experts, one or two binades more for all, 2**-12 to
2**-10 by expert and matrix, or 2**-2 to 1 with block scales at the bottom of the normal range. Block scales differ within a
matrix by up to two binades, weights of the routes are arbitrary. Prepared and run by SGLang's own code with the plug-in's
order of routes and no atomic adds; shapes are nano-K3's and those of Kimi-K3 on one of 16 ranks. For each number of tokens:
how many elements of the first product, of the second, and of the result have other bits than MXFP4's. Needs a GPU and SGLang
with its kernels.
"""

from __future__ import annotations

import importlib
import json
from functools import partial
from typing import Any

import torch
from torch import Tensor

from truecast.engines.sglang.fixes import marlin_ep_tile, marlin_repeatable

FP4 = "sglang.srt.layers.quantization.marlin_utils_fp4"
SHAPES = {
    "nano-K3": (16, 256, 256, 4, 1.6, (8, 48, 96, 200, 359, 384, 1000)),
    "Kimi-K3, 112 experts": (112, 3584, 192, 16, 0.5, (4, 16, 64, 150, 512, 1000)),
}
"""Experts, in, between, experts a token, size of the activations, numbers of tokens."""
LEVELS = ("2^-12", "2^-11", "2^-10", "2^-12 to 2^-10", "2^-2 to 1")


def level(name: str, experts: int, second: bool) -> Tensor:
    """Exponent of each expert's global scale."""
    differs = (torch.arange(experts, device="cuda") + second) % 3
    match name:
        case "2^-12 to 2^-10":
            return -12 + differs
        case "2^-2 to 1":
            return -differs
        case _:
            return torch.full_like(differs, int(name[2:]))


def scales(module: Any, exponents: Tensor, group: int, process: Any) -> Tensor:
    """Block scales ``2**exponents`` (``[experts, out, in / 32]``) for groups of ``group``, as SGLang permutes them."""
    full = torch.exp2(exponents.float()).repeat_interleave(32 // group, 2).bfloat16()
    out, into = full.shape[1], full.shape[2] * group
    return torch.stack(
        [
            process(module.marlin_permute_scales(s=one.T.contiguous(), size_k=into, size_n=out, group_size=group))
            for one in full
        ]
    )


def forms(module: Any, experts: int, into: int, between: int) -> dict[str, dict[str, Any]]:
    """Arguments of ``fused_marlin_moe``: ``mxfp4`` and one for each of :data:`LEVELS`."""
    none = torch.empty(0, dtype=torch.int, device="cuda")
    out: dict[str, dict[str, Any]] = {name: {} for name in ("mxfp4", *LEVELS)}
    for w, (rows, columns) in {"w1": (2 * between, into), "w2": (into, between)}.items():
        codes = torch.randint(256, (experts, rows, columns // 2), dtype=torch.uint8, device="cuda")
        packed = torch.stack(
            [
                module.gptq_marlin_repack(
                    b_q_weight=one.view(torch.int32).T.contiguous(), perm=none, size_k=columns, size_n=rows, num_bits=4
                )
                for one in codes
            ]
        )
        exponents = torch.randint(-6, -3, (experts, rows, columns // 32), device="cuda")
        native = partial(module.mxfp4_marlin_process_scales, input_dtype=torch.bfloat16)
        zero = torch.zeros(experts, rows, dtype=torch.bfloat16, device="cuda")
        out["mxfp4"] |= {w: packed, f"{w}_bias": zero, f"{w}_scale": scales(module, exponents, 32, native)}
        for name in LEVELS:
            whole = level(name, experts, w == "w2")
            single = module.nvfp4_marlin_process_global_scale(torch.exp2(whole.float()).bfloat16())
            block = scales(module, exponents - whole[:, None, None], 16, module.nvfp4_marlin_process_scales)
            out[name] |= {w: packed, f"{w}_scale": block, f"{w}_global_scale": single}
    return out


def main() -> int:
    """Print the table and one line of JSON."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    module, prepare = importlib.import_module(marlin_repeatable.CALLER), importlib.import_module(FP4)
    package = importlib.import_module(marlin_repeatable.ALIGN.rpartition(".")[0])
    package.moe_align_block_size = partial(marlin_repeatable.in_order, package.moe_align_block_size)
    gemm, products = partial(marlin_repeatable.experts, module.moe_wna16_marlin_gemm), list[Tensor]()

    def kept(*args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = gemm(*args, **kwargs)
        products.append(out.clone())
        return out

    module.moe_wna16_marlin_gemm = kept
    call = getattr(module, marlin_ep_tile.NAME)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print(f"shape | tokens | elements of the two products and the result | other bits: {' | '.join(LEVELS)}")
    rows: list[dict[str, Any]] = []
    for shape, (experts, into, between, topk, size, counts) in SHAPES.items():
        given = forms(prepare, experts, into, between)
        for count in counts:
            shared = {
                "hidden_states": (torch.randn(count, into, device="cuda") * size).bfloat16(),
                "gating_output": torch.empty(count, experts, device="cuda"),
                "topk_weights": torch.softmax(torch.randn(count, topk, device="cuda"), 1),
                "topk_ids": torch.rand(count, experts, device="cuda").topk(topk, 1).indices.int().contiguous(),
                "workspace": prepare.marlin_make_workspace(torch.device("cuda"), 4),
                "num_bits": 4,
                "activation": "situ",
                "gemm1_alpha": 4.0,
                "clamp_limit": 25.0,
            }
            found: dict[str, list[Tensor]] = {}
            for name, layer in given.items():
                products.clear()
                result = call(**layer, **shared).clone()
                found[name] = [product.flatten() for product in (*products, result)]
            other = {n: [int((a != b).sum()) for a, b in zip(found[n], found["mxfp4"], strict=True)] for n in LEVELS}
            elements = [part.numel() for part in found["mxfp4"]]
            rows.append({"shape": shape, "tokens": count, "elements": elements, "other": other})
            told = " | ".join(" ".join(map(str, other[name])) for name in LEVELS)
            print(f"{shape} | {count} | {' '.join(map(str, elements))} | {told}", flush=True)
    print(json.dumps({"benchmark": "sglang_global_scales", "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
