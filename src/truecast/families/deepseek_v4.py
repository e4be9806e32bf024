"""DeepSeek-V4: FP8 attention and shared experts, MXFP4 routed experts w1 (gate), w3 (up), w2 (down)."""

from __future__ import annotations

import re

from truecast.families.base import Family

DEEPSEEK_V4 = Family(
    name="deepseek_v4",
    model_types=frozenset({"deepseek_v4"}),
    telling_name=re.compile(r"^(mtp|layers)\.\d+\.(ffn\.experts\.\d+\.w[123]|attn\.wkv)\."),
    twins=(("w1", "w3"), ("gate_proj", "up_proj")),
    renames=((r"^(layers|mtp)\.", r"model.\1."), (r"\.ffn\.", ".mlp."), (r"\.attn\.", ".self_attn.")),
    fused={"gate_up_proj": ("w1", "w3"), "fused_wqa_wkv": ("wq_a", "wkv")},
    keep=(re.compile(r"^mtp\."),),  # engines read the draft's experts as MXFP4 whatever the main model's are
    wants_input_scales=frozenset({("nvfp4", "modelopt")}),  # vLLM 0.33 models/deepseek_v41/quant_config.py: W4A4 only
    dialect="deepseek",
    engine_notes={
        ("bf16", "bf16"): "FP8 modules stay FP8; no engine is known to read DeepSeek-V4 with BF16 experts",
        ("nvfp4", "compressed-tensors"): "no engine reads this dialect for DeepSeek-V4 (its config cannot describe the"
        " FP8 modules); for serving, convert with --dialect modelopt",
        ("w4afp8", "sglang"): "no engine is known to read DeepSeek-V4 with INT4 experts",
        ("w4afp8", "compressed-tensors"): "no engine is known to read DeepSeek-V4 with INT4 experts",
    },
)
