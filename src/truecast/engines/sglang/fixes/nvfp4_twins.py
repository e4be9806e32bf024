"""NVFP4 scales that Marlin would read wrong are refused, by layer and expert.

Marlin has one global scale for a fused matrix. Where its parts have different ones SGLang keeps one: w1's for w1 and w3 of
an expert, the largest for a fused linear layer (q, k and v; gate and up). It warns at most, and the other parts are off by
the ratio. And Marlin's scale format, a byte without sign whose top bit BF16 arithmetic takes for set, holds E4M3's normal
numbers exactly but no subnormal ones: with BF16 activations a block scale below 2**-6 becomes next to nothing, so the
block is lost. (With FP16 the subnormals come out right.) A negative scale loses its sign.

Whatever the format and the method, the last step is one of two functions that prepare a layer for Marlin: that is where
block scales are looked at. Global scales are noted before, as ModelOpt's methods drop all but one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.nvfp4 import on_marlin
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import function
from truecast.errors import RefusedError

if TYPE_CHECKING:
    import torch

MODULE = "sglang.srt.layers.quantization.modelopt_quant"
METHODS = tuple(
    f"{owner}.process_weights_after_loading"
    for owner in ("ModelOptNvFp4FusedMoEMethod", "ModelOptFp4LinearMethod", "ModelOptNvFp4A16LinearMethod")
)
MARLIN = "sglang.srt.layers.quantization.marlin_utils_fp4"
EXPERTS, LINEAR = "prepare_moe_nvfp4_layer_for_marlin", "prepare_nvfp4_layer_for_marlin"
_NOTED = "_truecast_global_scales"
_LEAST = 2.0**-126  # what is below was never written by a cast: an entry that no tensor of the checkpoint filled


def _need(situation: Situation) -> Need | None:
    if on_marlin(situation):
        return Need("NVFP4 on Marlin has one global scale a matrix and no subnormal block scales", required=False)
    return None


def _faulty(sources: Sources) -> bool:
    """Is a global scale dropped without an error, or are block scales still shifted into a byte without sign?"""
    keeps = {"[:, 0]": METHODS[:1], "weight_scale_2.max()": METHODS[1:]}
    dropped = []
    for words, methods in keeps.items():
        for method in methods:
            text = ast.unparse(ast.parse(function(sources, MODULE, method)))
            if words not in text or "weight_scale_2" not in text:
                raise LookupError(f"{method} keeps no part of weight_scale_2 in a way that is known")
            dropped.append(not _raises_on_difference(text))
    for name in (EXPERTS, LINEAR):
        if "nvfp4_marlin_process_scales" not in function(sources, MARLIN, name):
            raise LookupError(f"{MARLIN}.{name} prepares block scales in a way that is not known")
    shifted = "view(torch.int16) << 1" in function(sources, MARLIN, "nvfp4_marlin_process_scales")
    return any(dropped) or shifted


def _raises_on_difference(text: str) -> bool:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If) and any(word in ast.unparse(node.test) for word in ("allclose", "unique")):
            return any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    return False


def misread(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Which E4M3 block scales Marlin does not hold: subnormal ones with BF16 activations, negative ones and NaN."""
    import torch

    value = scales.view(torch.uint8)
    wrong = (value > 0x80) | (value == 0x7F)
    if dtype == torch.bfloat16:
        wrong |= (value > 0) & (value < 8)
    return wrong


def check_experts(layer: Any) -> None:
    """Raises: RefusedError naming the layer, the experts and what is wrong with them."""
    twins = _global_scales(layer, "w13_weight_global_scale", "w13_weight_scale_2")
    if twins is not None and layer.moe_runner_config.is_gated and twins.dim() == 2 and twins.shape[1] >= 2:
        kept = twins.to(layer.params_dtype)  # as Marlin keeps it
        _refuse(
            layer,
            kept[:, 0] != kept[:, 1],
            "w1 and w3 have different global scales (weight_scale_2), and Marlin has one for both",
            "cast the checkpoint again with one global scale for w1 and w3, as truecast does",
        )
    for name in ("w13", "w2"):
        scales, codes = getattr(layer, f"{name}_weight_scale").data, getattr(layer, f"{name}_weight").data
        _refuse(layer, _lost(misread(scales, layer.params_dtype), codes), f"{name} {_LOST}", _ROOM)


def check_linear(layer: Any) -> None:
    """Raises: RefusedError naming the layer and what is wrong with it."""
    where = getattr(layer, "prefix", "") or f"a linear layer of {' x '.join(map(str, layer.weight.shape))} bytes"
    dtype = getattr(layer, "params_dtype", None) or layer.orig_dtype
    parts = _global_scales(layer, "weight_scale_2")
    if parts is not None and len(kept := parts[parts >= _LEAST].to(dtype).unique()) > 1:
        raise RefusedError(
            f"the parts of this fused layer have different global scales (weight_scale_2), {kept.tolist()}, and Marlin has"
            " one for all",
            where=where,
            fix="cast the checkpoint again with one global scale for all parts, as truecast does",
        )
    wrong = misread(layer.weight_scale.data, dtype)
    if bool(_lost(wrong[None], layer.weight.data[None]).any()):
        raise RefusedError(_LOST.removeprefix("has "), where=where, fix=_ROOM)


_LOST = "has block scales (weight_scale) that Marlin cannot hold: E4M3 numbers below 2**-6 or negative ones"
_ROOM = "serve the MXFP4 form, or cast with a smaller global scale if the block scales leave room below 448"


def _global_scales(layer: Any, *otherwise: str) -> Any:
    """As they were loaded; None where the layer does not tell."""
    found = (getattr(layer, name, None) for name in (_NOTED, *otherwise))
    return next((scales.data for scales in found if scales is not None), None)


def _lost(wrong: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Which experts have such a scale over a block that is not zero throughout (its sixteen codes are eight bytes)."""
    import torch

    experts = wrong.flatten(1).any(1)
    for expert in experts.nonzero().flatten():
        alive = (codes[expert].view(torch.uint8).reshape(codes.shape[1], -1, 8) & 0x77 != 0).any(-1)
        experts[expert] = (wrong[expert] & alive).any()
    return experts


def _refuse(layer: Any, wrong: torch.Tensor, problem: str, remedy: str) -> None:
    if not bool(wrong.any()):
        return
    first = layer.moe_ep_rank * layer.num_local_experts
    found = [first + int(expert) for expert in wrong.nonzero().flatten()]
    named = ", ".join(map(str, found[:8])) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
    raise RefusedError(problem, where=f"layer {layer.layer_id}, expert {named}", fix=remedy)


def _noting(original: Callable[..., Any], self: Any, layer: Any) -> Any:
    """Around the methods that drop all but one."""
    found = getattr(layer, "w13_weight_scale_2", getattr(layer, "weight_scale_2", None))
    if found is None:
        return original(self, layer)
    setattr(layer, _NOTED, found.data.clone())
    try:
        return original(self, layer)
    finally:
        delattr(layer, _NOTED)


def _experts(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    check_experts(layer)
    return original(layer, *args, **kwargs)


def _linear(original: Callable[..., Any], layer: Any) -> Any:
    check_linear(layer)
    return original(layer)


def _hooks(situation: Situation) -> Sequence[Hook]:
    return (
        *(Hook(f"{MODULE}.{method}", _noting) for method in METHODS),
        Hook(f"{MARLIN}.{EXPERTS}", _experts),
        Hook(f"{MARLIN}.{LINEAR}", _linear),
    )


def _selftest(situation: Situation) -> None:
    """Each of the two checks lets a right layer pass, and neither a twin nor a subnormal scale."""
    import torch

    def layers(twin: float, scale: float) -> tuple[Any, Any]:
        scales = torch.full((1, 4, 4), scale).to(torch.float8_e4m3fn)
        codes = torch.ones(1, 4, 32, dtype=torch.uint8)
        experts = SimpleNamespace(layer_id=0, moe_ep_rank=0, num_local_experts=1, params_dtype=torch.bfloat16)
        experts.moe_runner_config = SimpleNamespace(is_gated=True)
        experts.w13_weight_scale = experts.w2_weight_scale = scales
        experts.w13_weight = experts.w2_weight = codes
        linear = SimpleNamespace(params_dtype=torch.bfloat16, weight=codes[0], weight_scale=scales[0])
        setattr(experts, _NOTED, torch.tensor([[1.0, twin]]))
        setattr(linear, _NOTED, torch.tensor([1.0, twin]))
        return experts, linear

    for twin, scale, right in ((1.0, 1.0, True), (2.0, 1.0, False), (1.0, 2.0**-9, False)):
        for check, layer in zip((check_experts, check_linear), layers(twin, scale), strict=True):
            try:
                check(layer)
                passed = True
            except RefusedError:
                passed = False
            assert passed == right, f"{check.__name__}: global scales 1 and {twin}, block scale {scale}: {passed}"


FIX = Fix(
    name="nvfp4-twins",
    summary="NVFP4 scales that Marlin reads wrong are refused",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=_hooks,
    selftest=_selftest,
    settings={},
)
