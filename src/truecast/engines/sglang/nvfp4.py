"""When SGLang runs NVFP4 through Marlin: experts, and the linear layers beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from truecast.engines.sglang.situation import Situation

MODELOPT = ("modelopt_fp4", "modelopt_mixed", "modelopt")
BLOCK = 16
"""Elements that share a block scale."""


def modelopt_on_marlin(situation: Situation) -> bool:
    """ModelOpt's NVFP4 experts (W4A16 there) on Marlin: asked for, or SGLang's own choice below Blackwell."""
    if situation.quantization not in MODELOPT or not situation.experts:
        return False
    by_default = situation.moe_backend == "auto" and _below_blackwell(situation)
    return "marlin" in situation.moe_backend or by_default


def on_marlin(situation: Situation) -> bool:
    """Whether any NVFP4 layer, an expert or not, may come to Marlin.

    Below Blackwell all do, whatever was asked for. From Blackwell on those do for which Marlin was asked, by
    ``--moe-runner-backend`` or ``--fp4-gemm-backend``, and linear layers whose activations are declared BF16 (W4A16).
    """
    if not is_nvfp4(situation):
        return False
    if "marlin" in situation.moe_backend or situation.linear_backend == "marlin" or _below_blackwell(situation):
        return True
    return "W4A16" in json.dumps(situation.quantization_config, default=str)


def is_nvfp4(situation: Situation) -> bool:
    """ModelOpt's NVFP4 and what may hold it, MiniMax's, and ``nvfp4-pack-quantized`` of compressed-tensors."""
    if situation.quantization == "compressed-tensors":
        block = situation.quantization_config
        groups = block.get("config_groups")
        weights = [group.get("weights") for group in _values(groups) if isinstance(group, Mapping)]
        return block.get("format") == "nvfp4-pack-quantized" or any(_fp4_in_blocks(weight) for weight in weights)
    return situation.quantization in MODELOPT or "nvfp4" in (situation.quantization or "")


def _values(groups: Any) -> list[Any]:
    return list(groups.values()) if isinstance(groups, Mapping) else []


def _fp4_in_blocks(weights: Any) -> bool:
    """SGLang's own test, but for the strategy: MXFP4 has blocks of 32."""
    if not isinstance(weights, Mapping):
        return False
    return weights.get("num_bits") == 4 and weights.get("type") == "float" and weights.get("group_size") == BLOCK


def _below_blackwell(situation: Situation) -> bool:
    return situation.capability is not None and (8, 0) <= situation.capability < (10, 0)
