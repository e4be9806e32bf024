"""The small files of a checkpoint shaped like Kimi-K3: configuration, a tokenizer stand-in, a modelling stub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from examples.shaped.auxiliary import CHAT_TEMPLATE, LICENSE, byte_ranks, readme, to_json
from truecast.layouts.mxfp4_compressed_tensors import quantization_config

if TYPE_CHECKING:
    from examples.shaped.kimi_k3 import K3Shape

IGNORE = (
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    "re:.*lm_head.*",
    "re:.*vision_tower.*",
    "re:.*mm_projector.*",
)
"""As released: it leaves out modules that are plain all the same (routed_expert_down_proj and others)."""

MODELLING = '''\
"""Stand-in for the released modelling code: builds the one parameter whose stored shape differs from its own."""

import torch
from torch import nn


class KimiDeltaAttention(nn.Module):
    """Linear attention with one decay rate a head."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.num_heads = config.linear_attn_config["num_heads"]
        self.A_log = nn.Parameter(torch.zeros(self.num_heads, dtype=torch.float32))
'''


def small_files(shape: K3Shape) -> dict[str, bytes]:
    """File name -> content of everything beside shards and index."""
    first_special = shape.vocab - 256
    tokens = {
        "bos_token_id": first_special,
        "eos_token_id": first_special + 2,
        "pad_token_id": shape.vocab - 1,
    }
    return {
        "config.json": to_json(config(shape, tokens)),
        "generation_config.json": to_json(tokens),
        "tokenizer_config.json": to_json({"tokenizer_class": "TikTokenTokenizer", "model_max_length": 1048576}),
        "tiktoken.model": byte_ranks(),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
        "modeling_kimi_linear.py": MODELLING.encode(),
        "LICENSE": LICENSE.encode(),
        "README.md": readme("Kimi-K3", "kimi_k3"),
    }


def config(shape: K3Shape, tokens: dict[str, int]) -> dict[str, Any]:
    """``config.json``; ``quantization_config`` is nested in ``text_config``, as released."""
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "auto_map": {
            "AutoConfig": "configuration_kimi_k3.KimiK3Config",
            "AutoModelForCausalLM": "modeling_kimi_k3.KimiK3ForConditionalGeneration",
        },
        **tokens,
        "dtype": "bfloat16",
        "ignore_index": -100,
        "image_placeholder": "<|kimi_image_placeholder|>",
        "media_placeholder_token_id": shape.vocab - 235,
        "model_type": "kimi_k3",
        "text_config": _text(shape, tokens),
        "tie_word_embeddings": False,
        "vision_config": _vision(shape),
    }


def _text(shape: K3Shape, tokens: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        **tokens,
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 12,
        "dtype": "bfloat16",
        "first_k_dense_replace": 1,
        "hidden_act": "situ",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.dense_width,
        "kv_lora_rank": shape.kv_lora,
        "latent_moe_use_norm": True,
        "linear_attn_config": {
            "full_attn_layers": [i + 1 for i in range(shape.layers) if shape.is_mla(i)],
            "gate_lower_bound": -5.0,
            "head_dim": shape.head_dim,
            "kda_layers": [i + 1 for i in range(shape.layers) if not shape.is_mla(i)],
            "num_heads": shape.heads,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
        },
        "max_position_embeddings": 1048576,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "moe_intermediate_size": shape.expert_width,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_attention_heads": shape.heads,
        "num_expert_group": 1,
        "num_experts": shape.experts,
        "num_experts_per_token": min(16, shape.experts),
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.heads,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": shape.shared_experts,
        "q_lora_rank": shape.q_lora,
        "qk_nope_head_dim": shape.head_dim,
        "qk_rope_head_dim": shape.rope_dim,
        "quantization_config": quantization_config(IGNORE, activations=False),
        "rms_norm_eps": 1e-05,
        "routed_expert_hidden_size": shape.latent,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "transformers_version": "4.56.2",
        "use_grouped_topk": True,
        "v_head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
    }


def _vision(shape: K3Shape) -> dict[str, Any]:
    return {
        "_attn_implementation": "flash_attention_2",
        "activation": "gelu_pytorch_tanh",
        "attn_bias": False,
        "init_pos_emb_height": shape.vision_grid,
        "init_pos_emb_time": 4,
        "init_pos_emb_width": shape.vision_grid,
        "linear_bias": False,
        "merge_kernel_size": [2, 2],
        "merge_type": "sd2_tpool",
        "mlp_type": "mlp2",
        "mm_hidden_size": shape.vision_hidden,
        "mm_projector_type": "patchmergerv2",
        "norm_type": "rmsnorm",
        "patch_embed_proj_bias": False,
        "patch_size": 14,
        "pos_emb_interpolation_mode": "bilinear",
        "pos_emb_type": "divided_fixed",
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-05,
        "qkv_hidden_size": shape.vision_attention,
        "text_hidden_size": shape.hidden,
        "vt_hidden_size": shape.vision_hidden,
        "vt_intermediate_size": shape.vision_width,
        "vt_num_attention_heads": max(1, shape.vision_attention // 128),
        "vt_num_hidden_layers": shape.vision_layers,
    }
