"""Kimi-K3 with FP8 attention: after loading, 0.5.17 compiles a kernel of KDA for the dtype of the weights, and stops.

``post_load_weights`` compiles ``recompute_w_u`` beforehand, for ``o_proj.weight.dtype``. In FP8 checkpoints that is E4M3,
which no call ever has and Triton cannot compile. Later releases ask for the dtype of the activations.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.situation import Situation

CALLER = "sglang.srt.models.kimi_k3"
MODULE = "sglang.kernels.ops.attention.fla.kda"
FUNCTION = "precompile_k3_recompute_w_u_kernel"


def _need(situation: Situation) -> Need | None:
    fp8 = situation.quantization is not None and "fp8" in situation.quantization
    if fp8 and "linear_attn_config" in situation.config:
        return Need("the attention may be FP8, with KDA", required=False)
    return None


def _faulty(sources: Sources) -> bool:
    """Does the caller take the dtype of the weight and nothing else?"""
    for node in ast.walk(ast.parse(sources(CALLER))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == FUNCTION:
            for keyword in node.keywords:
                if keyword.arg == "dtype":
                    return ast.unparse(keyword.value).endswith(".weight.dtype")
    raise LookupError(f"{CALLER} calls no {FUNCTION} with a dtype")


def _precompile(original: Callable[..., Any], *, dtype: Any, **others: Any) -> Any:
    import torch

    # SGLang's FP8 linear layers give BF16, and so that is what the kernel is called with
    return original(dtype=torch.bfloat16 if dtype.is_floating_point and dtype.itemsize == 1 else dtype, **others)


def _selftest(situation: Situation) -> None:
    import torch

    found: list[Any] = []
    for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float16):
        _precompile(lambda **given: found.append(given["dtype"]), dtype=dtype)
    assert found == [torch.bfloat16, torch.bfloat16, torch.float16], f"the kernel would be compiled for {found}"


FIX = Fix(
    name="kda-precompile",
    summary="KDA's kernel compiled for BF16 where weights are FP8",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=lambda situation: [Hook(f"{MODULE}.{FUNCTION}", _precompile)],
    selftest=_selftest,
    settings={},
)
