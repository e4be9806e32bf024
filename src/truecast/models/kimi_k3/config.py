"""Kimi-K3's dimensions, all from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from truecast.models.settings import Settings


@dataclass(frozen=True, slots=True)
class K3Config:
    """What the forward pass needs to know. Layer numbers are 0-based here, 1-based in the file."""

    hidden: int
    layers: int
    vocab: int
    dense_width: int
    dense_layers: int
    heads: int
    q_lora: int
    kv_lora: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    kda_layers: frozenset[int]
    kda_heads: int
    kda_head_dim: int
    conv_taps: int
    gate_lower_bound: float | None
    attn_res_block: int
    experts: int
    experts_per_token: int
    shared_experts: int
    expert_width: int
    latent: int
    renormalize: bool
    routed_scaling_factor: float
    situ_beta: float
    situ_linear_beta: float
    eps: float
    tied: bool

    def is_kda(self, layer: int) -> bool:
        """Has this layer (0-based) KDA? The others have MLA."""
        return layer in self.kda_layers

    def is_dense(self, layer: int) -> bool:
        """Has this layer (0-based) a dense feed-forward block? The others have experts."""
        return layer < self.dense_layers


def read_config(document: Mapping[str, Any], where: str) -> K3Config:
    """Read ``config.json``, or its ``text_config`` where there is one. ``where`` is the file, for messages.

    Raises: InputError for a setting that is missing, of another type, or not that of Kimi-K3.
    """
    outer = Settings(document, where)
    text = outer.block("text_config") if "text_config" in document else outer
    linear = text.block("linear_attn_config")
    _check_kind(text, linear)
    layers = text.natural("num_hidden_layers")
    kda, mla = linear.naturals("kda_layers"), linear.naturals("full_attn_layers")
    if len(kda) + len(mla) != layers or sorted([*kda, *mla]) != list(range(1, layers + 1)):
        raise linear.error("kda_layers", f"and full_attn_layers do not name each of the layers 1 to {layers} once")
    heads = text.natural("num_attention_heads")
    if (shared := text.natural("num_key_value_heads", heads)) != heads:
        raise text.error("num_key_value_heads", f"is {shared}; MLA has as many as query heads, {heads}")
    config = K3Config(
        hidden=text.natural("hidden_size"),
        layers=layers,
        vocab=text.natural("vocab_size"),
        dense_width=text.natural("intermediate_size"),
        dense_layers=text.natural("first_k_dense_replace", 0, least=0),
        heads=heads,
        q_lora=text.natural("q_lora_rank"),
        kv_lora=text.natural("kv_lora_rank"),
        nope_dim=text.natural("qk_nope_head_dim"),
        rope_dim=text.natural("qk_rope_head_dim"),
        v_dim=text.natural("v_head_dim"),
        kda_layers=frozenset(i - 1 for i in kda),
        kda_heads=linear.natural("num_heads"),
        kda_head_dim=linear.natural("head_dim"),
        conv_taps=linear.natural("short_conv_kernel_size"),
        gate_lower_bound=linear.number("gate_lower_bound", None),
        attn_res_block=text.natural("attn_res_block_size"),
        experts=text.natural("num_experts"),
        experts_per_token=text.natural("num_experts_per_token"),
        shared_experts=text.natural("num_shared_experts"),
        expert_width=text.natural("moe_intermediate_size"),
        latent=text.natural("routed_expert_hidden_size"),
        renormalize=text.flag("moe_renormalize"),
        routed_scaling_factor=text.positive("routed_scaling_factor"),
        situ_beta=text.positive("activation_situ_beta"),
        situ_linear_beta=text.positive("activation_situ_linear_beta"),
        eps=text.positive("rms_norm_eps"),
        tied=text.flag("tie_word_embeddings", False),
    )
    if config.experts_per_token > config.experts:
        raise text.error("num_experts_per_token", f"is {config.experts_per_token}, more than num_experts")
    if config.gate_lower_bound is not None and config.gate_lower_bound >= 0:
        raise linear.error("gate_lower_bound", f"is {config.gate_lower_bound}; log decays are below zero")
    return config


def _check_kind(text: Settings, linear: Settings) -> None:
    """Refuse what the reference model does not compute rather than compute something else."""
    for name, only in (
        ("hidden_act", "situ"),
        ("mla_use_nope", True),
        ("mla_use_output_gate", True),
        ("latent_moe_use_norm", True),
        ("moe_router_activation_func", "sigmoid"),
        ("moe_layer_freq", 1),
    ):
        text.require(name, only)
    linear.require("use_full_rank_gate", True)
    for name, only in (("num_expert_group", 1), ("topk_group", 1), ("topk_method", "noaux_tc")):
        text.require(name, only, absent_is_fine=True)
