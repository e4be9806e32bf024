"""When SGLang runs NVFP4 experts through Marlin."""

from __future__ import annotations

from truecast.engines.sglang.situation import Situation

MODELOPT = ("modelopt_fp4", "modelopt_mixed", "modelopt")


def modelopt_on_marlin(situation: Situation) -> bool:
    """ModelOpt's NVFP4 (W4A16 there) on Marlin: asked for, or SGLang's own choice below Blackwell."""
    if situation.quantization not in MODELOPT or not situation.experts:
        return False
    capability = situation.capability
    by_default = situation.moe_backend == "auto" and capability is not None and (8, 0) <= capability < (10, 0)
    return "marlin" in situation.moe_backend or by_default
