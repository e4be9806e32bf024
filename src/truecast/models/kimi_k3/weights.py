"""Names of Kimi-K3's tensors -> weights of a layer and of the head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from truecast.errors import InputError
from truecast.models.experts import Experts, Listed
from truecast.models.kimi_k3.attn_res import AttnRes
from truecast.models.kimi_k3.config import K3Config
from truecast.models.kimi_k3.kda import Kda
from truecast.models.kimi_k3.layer import K3Layer
from truecast.models.kimi_k3.mla import Mla
from truecast.models.kimi_k3.moe import Mlp, Moe
from truecast.models.linear import Linear


class Weights(Protocol):
    """Where weights come from: a checkpoint (:class:`truecast.models.stored.Stored`), or parameters in training."""

    def has(self, module: str) -> bool:
        """Is there such a matrix?"""

    def tensor(self, name: str, *shapes: tuple[int, ...]) -> Tensor:
        """A plain tensor of one of these shapes. Raises: InputError where it is missing, or of another shape."""

    def linear(self, module: str, rows: int, cols: int) -> Linear:
        """A matrix. ``module`` is its name without ``.weight``. Raises: InputError likewise."""

    def where(self, name: str) -> str:
        """Tensor and file, for messages."""


MakeExperts = Callable[[K3Config, str, Weights], Experts]
"""The experts of a layer, of which all names begin so: ``(config, prefix, weights)``."""

_SPELLINGS = (("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj"))
"""Gate, up and down of an expert: as released, and as layouts that stack experts give them."""


def listed_experts(config: K3Config, prefix: str, stored: Weights) -> Experts:
    """The experts as a checkpoint has them, each with matrices of its own."""
    latent, width = config.latent, config.expert_width
    gate, up, down = next((s for s in _SPELLINGS if stored.has(f"{prefix}0.{s[0]}")), _SPELLINGS[0])
    experts = [
        (
            stored.linear(f"{prefix}{e}.{gate}", width, latent),
            stored.linear(f"{prefix}{e}.{up}", width, latent),
            stored.linear(f"{prefix}{e}.{down}", latent, width),
        )
        for e in range(config.experts)
    ]
    return Experts(Listed(experts))


def layer(
    config: K3Config, index: int, model: str, stored: Weights, make_experts: MakeExperts = listed_experts
) -> K3Layer:
    """Layer ``index`` (0-based). ``model`` is the prefix of the text model's tensors, dot included."""
    prefix = f"{model}layers.{index}."
    hidden = (config.hidden,)
    attention = _kda if config.is_kda(index) else _mla
    return K3Layer(
        config,
        index,
        attn_res(config, f"{prefix}self_attention_res", stored) if index else None,
        stored.tensor(f"{prefix}input_layernorm.weight", hidden),
        attention(config, f"{prefix}self_attn.", stored),
        attn_res(config, f"{prefix}mlp_res", stored),
        stored.tensor(f"{prefix}post_attention_layernorm.weight", hidden),
        _mlp(config.hidden, config.dense_width, f"{prefix}mlp.", stored)
        if config.is_dense(index)
        else _moe(config, f"{prefix}block_sparse_moe.", stored, make_experts),
    )


def attn_res(config: K3Config, stem: str, stored: Weights) -> AttnRes:
    """Norm and query of one mix."""
    norm = stored.tensor(f"{stem}_norm.weight", (config.hidden,))
    return AttnRes(norm, stored.tensor(f"{stem}_proj.weight", (1, config.hidden)))


def _kda(config: K3Config, prefix: str, stored: Weights) -> Kda:
    hidden, heads, width = config.hidden, config.kda_heads, config.kda_head_dim
    inner, taps = heads * width, config.conv_taps

    def linear(name: str, rows: int, cols: int) -> Linear:
        return stored.linear(prefix + name, rows, cols)

    def convolution(name: str) -> Tensor:
        return stored.tensor(f"{prefix}{name}_conv1d.weight", (inner, 1, taps), (inner, taps)).reshape(inner, taps)

    return Kda(
        q=linear("q_proj", inner, hidden),
        k=linear("k_proj", inner, hidden),
        v=linear("v_proj", inner, hidden),
        gate=linear("g_proj", inner, hidden),
        decay_a=linear("f_a_proj", width, hidden),
        decay_b=linear("f_b_proj", inner, width),
        beta=linear("b_proj", heads, hidden),
        out=linear("o_proj", hidden, inner),
        convolutions=(convolution("q"), convolution("k"), convolution("v")),
        a_log=_a_log(heads, f"{prefix}A_log", stored),
        dt_bias=stored.tensor(f"{prefix}dt_bias", (inner,)),
        out_norm=stored.tensor(f"{prefix}o_norm.weight", (width,)),
    )


def _a_log(heads: int, name: str, stored: Weights) -> Tensor:
    """``A_log`` of the heads. It is stored longer than that, with zeros behind: anything else there is refused."""
    value = stored.tensor(name)
    if max(value.shape, default=0) != value.numel() or value.numel() < heads:
        raise InputError(f"has shape {list(value.shape)}; there are {heads} heads", where=stored.where(name))
    value = value.reshape(-1)
    padded = value.numel() > heads and not value.is_meta
    if padded and bool(torch.count_nonzero(value[heads:])):
        raise InputError(
            f"has {value.numel()} values for {heads} heads, and those behind the heads are not all zero",
            where=stored.where(name),
            fix="the config does not belong to these weights, or the file is damaged",
        )
    return value[:heads].clone()


def _mla(config: K3Config, prefix: str, stored: Weights) -> Mla:
    hidden, heads = config.hidden, config.heads
    inner, query = heads * config.v_dim, heads * (config.nope_dim + config.rope_dim)
    return Mla(
        q_a=stored.linear(f"{prefix}q_a_proj", config.q_lora, hidden),
        q_a_norm=stored.tensor(f"{prefix}q_a_layernorm.weight", (config.q_lora,)),
        q_b=stored.linear(f"{prefix}q_b_proj", query, config.q_lora),
        kv_a=stored.linear(f"{prefix}kv_a_proj_with_mqa", config.kv_lora + config.rope_dim, hidden),
        kv_a_norm=stored.tensor(f"{prefix}kv_a_layernorm.weight", (config.kv_lora,)),
        kv_b=stored.linear(f"{prefix}kv_b_proj", heads * (config.nope_dim + config.v_dim), config.kv_lora),
        gate=stored.linear(f"{prefix}g_proj", inner, hidden),
        out=stored.linear(f"{prefix}o_proj", hidden, inner),
    )


def _mlp(hidden: int, width: int, prefix: str, stored: Weights) -> Mlp:
    return Mlp(
        stored.linear(f"{prefix}gate_proj", width, hidden),
        stored.linear(f"{prefix}up_proj", width, hidden),
        stored.linear(f"{prefix}down_proj", hidden, width),
    )


def _moe(config: K3Config, prefix: str, stored: Weights, make_experts: MakeExperts) -> Moe:
    hidden, latent = config.hidden, config.latent
    return Moe(
        experts=make_experts(config, f"{prefix}experts.", stored),
        router=stored.tensor(f"{prefix}gate.weight", (config.experts, hidden)),
        bias=stored.tensor(f"{prefix}gate.e_score_correction_bias", (config.experts,)),
        down=stored.linear(f"{prefix}routed_expert_down_proj", latent, hidden),
        norm=stored.tensor(f"{prefix}routed_expert_norm.weight", (latent,)),
        up=stored.linear(f"{prefix}routed_expert_up_proj", hidden, latent),
        shared=_mlp(hidden, config.shared_experts * config.expert_width, f"{prefix}shared_experts.", stored),
    )
