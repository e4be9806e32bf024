"""Kimi-K3 (and Kimi-Linear): KDA and MLA attention, latent MoE with experts w1 (gate), w3 (up), w2 (down)."""

from __future__ import annotations

import re

from truecast.families.base import Family

KIMI_K3 = Family(
    name="kimi_k3",
    model_types=frozenset({"kimi_k3", "kimi_linear"}),
    telling_name=re.compile(r"block_sparse_moe\.routed_expert_(down|up)_proj\."),
    twins=(("w1", "w3"), ("gate_proj", "up_proj")),
    renames=(
        (r"^language_model\.", ""),
        (r"^(language_model\.)?model\.", r"\1"),
        (r"\.block_sparse_moe\.", ".mlp."),
        (r"\.block_sparse_moe$", ".mlp"),
        (r"^mm_projector\.proj\.0$", "mm_projector.linear_1"),
        (r"^mm_projector\.proj\.2$", "mm_projector.linear_2"),
    ),
    # SGLang 0.5.20 models/kimi_k3.py and vLLM 0.33 models/kimi_k3: runtime modules and what they are made of
    fused={
        "gate_up_proj": ("gate_proj", "up_proj"),
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "fused_qkvg_proj": ("q_proj", "k_proj", "v_proj", "g_proj"),
        "in_proj_qkvgfab": ("q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "b_proj"),
        "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
        "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
        "fused_qkv_a_g_proj": ("q_a_proj", "kv_a_proj_with_mqa", "g_proj"),
    },
    # SGLang 0.5.20 models/kimi_k3.py reads the .weight of f_a, f_b, b and kv_b as it is, and q_b's rows do not split
    fp8=(re.compile(r"^(model\.|language_model\.)*layers\.\d+\.self_attn\.[qkvgo]_proj$"),),
    dialect="compressed-tensors",
    engine_notes={
        (
            "nvfp4",
            "modelopt",
        ): "on Blackwell SGLang serves it with --moe-runner-backend flashinfer_trtllm; on Hopper SGLang"
        " up to 0.5.23 rejects the activation (situ) at the first forward pass, although its Marlin kernels have it:"
        " truecast's plug-in mends that (situ-nvfp4, docs/sglang.md)",
        ("nvfp4", "compressed-tensors"): "SGLang up to 0.5.23 drops these experts without an error (it renames"
        " weight_packed); serve this dialect with vLLM, or convert with --dialect modelopt",
        (
            "w4afp8",
            "sglang",
        ): "SGLang 0.5.20 as released cannot serve it: it drops ignored_layers and stops while it loads,"
        " and computes SiLU instead of situ: truecast's plug-in mends both (w4afp8-config, situ-w4afp8; docs/sglang.md)",
        (
            "w4afp8",
            "compressed-tensors",
        ): "SGLang up to 0.5.23 drops these experts without an error; vLLM 0.33 loads them,"
        " but its CUTLASS kernel rounds group scales to E4M3, and negative group scales were tried in neither of its kernels",
    },
)
