"""NVFP4 on Marlin answers the same twice: no partial sums in BF16 that arrive in any order.

From Hopper on SGLang lets Marlin add the partial sums of a split K with atomic adds, except for MXFP4. Two equal runs of
a model then differ. Without, Marlin sums in FP32 in a fixed order, and NVFP4 and MXFP4 of the same values agree in every
bit. ``TRUECAST_SGLANG_ATOMIC_ADD=1`` leaves it on.
"""

from __future__ import annotations

import ast
import importlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from truecast.engines.sglang.choice import switch
from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.nvfp4 import modelopt_on_marlin
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import function

VARIABLE = "TRUECAST_SGLANG_ATOMIC_ADD"
CALLER = "sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe"
EXPERTS = "sglang.kernels.ops.moe.moe_wna16_marlin"
DENSE = ("sglang.kernels.ops.quantization.gptq_marlin", "sglang.kernels.ops.gemm.gptq_marlin")
"""Where ``gptq_marlin_gemm`` lies, by release."""


def _need(situation: Situation) -> Need | None:
    if not modelopt_on_marlin(situation) or switch(os.environ.get(VARIABLE, "0")):
        return None
    return Need("NVFP4 on Marlin would add partial sums in any order", required=False)


def _faulty(sources: Sources) -> bool:
    tree = ast.parse(function(sources, CALLER, "fused_marlin_moe"))
    values = [
        ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "use_atomic_add"
    ]
    if not values:
        raise LookupError(f"{CALLER}.fused_marlin_moe decides nothing about use_atomic_add")
    return any("get_device_capability" in value and "nvfp4" not in value for value in values)


def _without(original: Callable[..., Any], *args: Any, place: int, name: str, **kwargs: Any) -> Any:
    """``place`` and ``name`` of the global scale, which only NVFP4 has."""
    scale = args[place] if len(args) > place else kwargs.get(name)
    if scale is not None:
        kwargs["use_atomic_add"] = False
    return original(*args, **kwargs)


experts = partial(_without, place=5, name="global_scale_or_none")
dense = partial(_without, place=4, name="global_scale")


def _dense_module() -> str:
    for module in DENSE:
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        return module
    raise LookupError(f"there is none of {', '.join(DENSE)}")


def _hooks(situation: Situation) -> Sequence[Hook]:
    return [
        Hook(f"{EXPERTS}.moe_wna16_marlin_gemm", experts),
        Hook(f"{_dense_module()}.gptq_marlin_gemm", dense),
    ]


def _selftest(situation: Situation) -> None:
    import inspect

    for module, name, hook in (
        (EXPERTS, "moe_wna16_marlin_gemm", experts),
        (_dense_module(), "gptq_marlin_gemm", dense),
    ):
        names = list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)
        place, scale = hook.keywords["place"], hook.keywords["name"]
        assert names[place] == scale, f"argument {place} of {name} is {names[place]}, not {scale}"
        assert "use_atomic_add" in names, f"{name} takes no use_atomic_add"


FIX = Fix(
    name="nvfp4-repeatable",
    summary="NVFP4 on Marlin without atomic adds",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=_hooks,
    selftest=_selftest,
    settings={VARIABLE: switch},
)
