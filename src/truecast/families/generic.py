"""Any other model: the twins and fused names that nearly all decoder implementations share."""

from __future__ import annotations

import re

from truecast.families.base import Family

GENERIC = Family(
    name="generic",
    model_types=frozenset(),
    telling_name=re.compile(r"(?!)"),
    twins=(("w1", "w3"), ("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj")),
    renames=((r"^language_model\.", ""), (r"^model\.", ""), (r"\.block_sparse_moe\.", ".mlp.")),
    fused={"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")},
    fp8=(re.compile(r"^(model\.|language_model\.)*layers\.\d+\.self_attn\.[qkvo]_proj$"),),
)
