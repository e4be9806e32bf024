"""gpt-oss: grouped-query attention with sinks, MoE with stacked experts and biases."""

from __future__ import annotations

import re

from truecast.families.base import Family

GPT_OSS = Family(
    name="gpt_oss",
    model_types=frozenset({"gpt_oss"}),
    telling_name=re.compile(r"\.experts\.(gate_up|down)_proj_(blocks|scales)$"),
    twins=(("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj")),
    renames=((r"^model\.", ""), (r"\.self_attn\.", ".attn.")),
    fused={"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")},
    fp8=(re.compile(r"^(model\.|language_model\.)*layers\.\d+\.self_attn\.[qkvo]_proj$"),),
    dialect="gpt-oss",
    engine_notes={
        ("nvfp4", dialect): "no released SGLang (0.5.23) or vLLM (0.33) loads gpt-oss with NVFP4 experts: biases and"
        " global scales have no place in their MoE methods yet"
        for dialect in ("modelopt", "compressed-tensors")
    },
)
