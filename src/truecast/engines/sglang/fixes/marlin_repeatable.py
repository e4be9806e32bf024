"""FP4 on Marlin answers the same twice: no partial sums in any order, and the same rows in the same tile.

Marlin's blocks share out the work of a layer tile by tile, and where one ends within K depends on the tile's number. So two
things may differ from call to call, and then two equal runs of a model differ:

- Partial sums. From Hopper on SGLang lets Marlin add them with atomic adds in BF16, except for MXFP4. Without, it adds in
  FP32 in a fixed order. ``TRUECAST_SGLANG_ATOMIC_ADD=1`` leaves the atomic adds on.
- Which tile a row lies in. ``moe_align_block_size`` deals the slots of an expert by atomic adds as soon as there are 1024
  routes or 64 experts; a row in another tile is cut elsewhere, and rounded otherwise. The routes are put in their own order
  after it. ``TRUECAST_SGLANG_STABLE_ORDER=0`` leaves them as they come.

With both, NVFP4 and MXFP4 of the same values agree in every bit where Marlin cuts K alike for both (docs/benchmarks.md).
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from truecast.engines.sglang.choice import switch
from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.nvfp4 import on_marlin
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import function

VARIABLE = "TRUECAST_SGLANG_ATOMIC_ADD"
ORDER = "TRUECAST_SGLANG_STABLE_ORDER"
CALLER = "sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe"
ALIGN = "sglang.srt.layers.moe.fused_moe_triton.moe_align_block_size"
"""Where ``fused_marlin_moe`` looks at each call."""
ALIGNMENT = "sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size"
"""The module that defines it."""
EXPERTS = "sglang.kernels.ops.moe.moe_wna16_marlin"
LINEAR = "sglang.srt.layers.quantization.marlin_utils_fp4"
"""Where the linear layers of NVFP4 call Marlin, with atomic adds for narrow and deep ones."""
DENSE = ("sglang.kernels.ops.quantization.gptq_marlin", "sglang.kernels.ops.gemm.gptq_marlin")
"""Where ``gptq_marlin_gemm`` lies, by release."""


def _mxfp4(situation: Situation) -> bool:
    block = situation.quantization_config
    names = (situation.quantization, block.get("quant_method"), block.get("format"))
    return "marlin" in situation.moe_backend and situation.experts > 0 and any("mxfp4" in str(name) for name in names)


def _adds(situation: Situation) -> bool:
    """Are there atomic adds to be taken away?"""
    return on_marlin(situation) and not switch(situation.environment.get(VARIABLE, "0"))


def _orders(situation: Situation) -> bool:
    """Would the order of routes be all that is left to differ?"""
    asked = switch(situation.environment.get(ORDER, "1")) and situation.experts > 0
    return asked and (_adds(situation) or _mxfp4(situation))


def _need(situation: Situation) -> Need | None:
    if _adds(situation):
        return Need("NVFP4 on Marlin would add partial sums in any order", required=False)
    if _orders(situation):
        return Need("MXFP4 on Marlin would deal rows to its tiles in any order", required=False)
    return None


def _faulty(sources: Sources) -> bool:
    caller = function(sources, CALLER, "fused_marlin_moe")
    values = [
        ast.unparse(node.value)
        for node in ast.walk(ast.parse(caller))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "use_atomic_add"
    ]
    if not values:
        raise LookupError(f"{CALLER}.fused_marlin_moe decides nothing about use_atomic_add")
    adds = any("get_device_capability" in value and "nvfp4" not in value for value in values)
    if "moe_align_block_size(" not in caller:
        raise LookupError(f"{CALLER}.fused_marlin_moe aligns routes to tiles in a way that is not known")
    dealt = "sgl_moe_align_block_size(" in function(sources, ALIGNMENT, "moe_align_block_size")
    return adds or dealt or "use_atomic_add=use_atomic_add" in function(sources, LINEAR, "apply_fp4_marlin_linear")


def _without(original: Callable[..., Any], *args: Any, place: int, name: str, **kwargs: Any) -> Any:
    """``place`` and ``name`` of the global scale, which only NVFP4 has."""
    scale = args[place] if len(args) > place else kwargs.get(name)
    if scale is not None:
        kwargs["use_atomic_add"] = False
    return original(*args, **kwargs)


experts = partial(_without, place=5, name="global_scale_or_none")
dense = partial(_without, place=4, name="global_scale")


def in_order(
    original: Callable[..., Any], topk_ids: Any, block_size: int, num_experts: int, *args: Any, **kwargs: Any
) -> Any:
    """What SGLang's function gives, with each expert's routes in their own order."""
    made = original(topk_ids, block_size, num_experts, *args, **kwargs)
    if topk_ids.is_cuda and not (args[0] if args else kwargs.get("ignore_invalid_expert")):
        from truecast.engines.sglang.kernels.stable_order import put_in_order

        put_in_order(topk_ids.contiguous(), block_size, num_experts, *made)
    return made


def _dense_module() -> str:
    for module in DENSE:
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        return module
    raise LookupError(f"there is none of {', '.join(DENSE)}")


def _hooks(situation: Situation) -> Sequence[Hook]:
    hooks = [Hook(ALIGN, in_order)] if _orders(situation) else []
    if _adds(situation):
        hooks += [Hook(f"{module}.{name}", hook) for module, name, hook in _adding(situation)]
    return hooks


def _selftest(situation: Situation) -> None:
    if _adds(situation):
        _check_signatures(situation)
    if _orders(situation) and situation.capability is not None:
        _check_order(situation.experts)


def _adding(situation: Situation) -> list[tuple[str, str, Any]]:
    """Module, name and hook of what is called with ``use_atomic_add``."""
    moe = [(EXPERTS, "moe_wna16_marlin_gemm", experts)] if situation.experts else []
    return [*moe, (_dense_module(), "gptq_marlin_gemm", dense)]


def _check_signatures(situation: Situation) -> None:
    import inspect

    for module, name, hook in _adding(situation):
        names = list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)
        place, scale = hook.keywords["place"], hook.keywords["name"]
        assert names[place] == scale, f"argument {place} of {name} is {names[place]}, not {scale}"
        assert "use_atomic_add" in names, f"{name} takes no use_atomic_add"


def _check_order(count: int) -> None:
    """A decode step's and a prefill's routes on this GPU, against a sort; each kernel that a run may want is compiled."""
    import torch

    from truecast.engines.sglang.kernels.stable_order import plain

    align = importlib.import_module(ALIGN.rpartition(".")[0]).moe_align_block_size
    for tokens in (3, 100, 512, 1024):
        for tile in (8, 64):
            ids = torch.randint(-1, count, (tokens, 16), dtype=torch.int32, device="cuda")
            slots, _, padded = align(ids, tile, count)[:3]
            wanted = torch.full_like(slots, ids.numel())
            plain(ids, tile, count, wanted)
            end = int(padded[0])
            assert torch.equal(slots[:end], wanted[:end]), f"{ids.numel()} routes in tiles of {tile} are out of order"


FIX = Fix(
    name="marlin-repeatable",
    summary="FP4 on Marlin without atomic adds, rows in their own order",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=_hooks,
    selftest=_selftest,
    settings={VARIABLE: switch, ORDER: switch},
)
