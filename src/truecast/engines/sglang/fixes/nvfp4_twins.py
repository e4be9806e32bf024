"""NVFP4 scales that Marlin would read wrong are refused, by layer and expert.

Marlin has one global scale for gate and up projection together. SGLang keeps w1's and warns where w3's is another one, so
w3 is off by their ratio. And Marlin's scale format, a byte without sign whose top bit BF16 arithmetic takes for set,
holds E4M3's normal numbers exactly but no subnormal ones: with BF16 activations a block scale below 2**-6 becomes next
to nothing, so the block is lost. (With FP16 the subnormals come out right.) A negative scale loses its sign.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from truecast.engines.sglang.fix import Fix, Hook, Need, Sources
from truecast.engines.sglang.nvfp4 import modelopt_on_marlin
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.source import function
from truecast.errors import RefusedError

if TYPE_CHECKING:
    import torch

MODULE = "sglang.srt.layers.quantization.modelopt_quant"
METHOD = "ModelOptNvFp4FusedMoEMethod.process_weights_after_loading"


def _need(situation: Situation) -> Need | None:
    if modelopt_on_marlin(situation):
        return Need("NVFP4 on Marlin has one global scale for w1 and w3 and no subnormal block scales", required=False)
    return None


def _faulty(sources: Sources) -> bool:
    """SGLang keeps column 0, whatever column 1 is, unless it raises on a difference."""
    tree = ast.parse(function(sources, MODULE, METHOD))
    if "w13_weight_scale_2[:, 0]" not in ast.unparse(tree):
        raise LookupError(f"{METHOD} keeps no column of w13_weight_scale_2")
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "allclose" in ast.unparse(node.test):
            return not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    return True


def misread(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Which E4M3 block scales Marlin does not hold: subnormal ones with BF16 activations, negative ones and NaN."""
    import torch

    value = scales.view(torch.uint8)
    wrong = (value > 0x80) | (value == 0x7F)
    if dtype == torch.bfloat16:
        wrong |= (value > 0) & (value < 8)
    return wrong


def check(layer: Any) -> None:
    """Raises: RefusedError naming the layer, the experts and how many scales are concerned."""
    twins = layer.w13_weight_scale_2.data
    if layer.moe_runner_config.is_gated and twins.dim() == 2 and twins.shape[1] >= 2:
        kept = twins.to(layer.params_dtype)  # as Marlin keeps it
        _refuse(
            layer,
            kept[:, 0] != kept[:, 1],
            "w1 and w3 have different global scales (weight_scale_2), and Marlin has one for both",
            "cast the checkpoint again with one global scale for w1 and w3, as truecast does",
        )
    for name in ("w13", "w2"):
        scales, codes = getattr(layer, f"{name}_weight_scale").data, getattr(layer, f"{name}_weight").data
        _refuse(
            layer,
            _lost(misread(scales, layer.params_dtype), codes),
            f"{name} has block scales (weight_scale) that Marlin cannot hold: E4M3 numbers below 2**-6 or negative ones",
            "serve the MXFP4 form, or cast with a smaller global scale if the block scales leave room below 448",
        )


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


def _checked(original: Callable[..., Any], self: Any, layer: Any) -> Any:
    backend = getattr(self, "_moe_runner_backend", None)
    if backend is not None and "marlin" in str(getattr(backend, "value", backend)):
        check(layer)
    return original(self, layer)


def _selftest(situation: Situation) -> None:
    import torch

    def layer(twin: float, scale: float) -> Any:
        scales = torch.full((1, 4, 4), scale).to(torch.float8_e4m3fn)
        return SimpleNamespace(
            layer_id=0,
            moe_ep_rank=0,
            num_local_experts=1,
            params_dtype=torch.bfloat16,
            moe_runner_config=SimpleNamespace(is_gated=True),
            w13_weight_scale_2=torch.tensor([[1.0, twin]]),
            w13_weight_scale=scales,
            w2_weight_scale=scales,
            w13_weight=torch.ones(1, 4, 32, dtype=torch.uint8),
            w2_weight=torch.ones(1, 4, 32, dtype=torch.uint8),
        )

    check(layer(1.0, 1.0))
    for twin, scale in ((2.0, 1.0), (1.0, 2.0**-9)):
        try:
            check(layer(twin, scale))
        except RefusedError:
            continue
        raise AssertionError(f"global scales 1 and {twin} with a block scale {scale} pass")


FIX = Fix(
    name="nvfp4-twins",
    summary="NVFP4 scales that Marlin reads wrong are refused",
    versions=("0.5.17", "0.5.24"),
    need=_need,
    faulty=_faulty,
    hooks=lambda situation: [Hook(f"{MODULE}.{METHOD}", _checked)],
    selftest=_selftest,
    settings={},
)
