"""What one request keeps on the GPUs while it runs: the KV cache that grows with its tokens, and a state that does not.

MLA keeps one compressed vector and one rotary key a token and layer, on every rank of tensor parallelism. KDA keeps one
matrix a head and layer, and the last inputs of its short convolutions; both are divided among the ranks. Ordinary
attention keeps keys and values, divided by heads.

Source: sgl-project/sglang 0.5.20, mem_cache/memory_pool.py and configs/mamba_utils.py; facts of Kimi-K3 in config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestMemory:
    """Elements, not bytes: the engine's options choose the types.

    ``kv_elements``: of the cache, a token. ``kv_divided``: is the cache divided among the ranks of tensor parallelism?
    ``state_elements``: of recurrent states, a request, over all ranks; ``convolution_elements`` likewise.
    """

    kv_elements: int
    kv_divided: bool
    state_elements: int = 0
    convolution_elements: int = 0


def request_memory(text: Mapping[str, Any]) -> RequestMemory | None:
    """Read from the text model's part of config.json; None where its attention is of no kind that is known here."""
    layers = _natural(text, "num_hidden_layers")
    if not layers:
        return None
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping):
        return _kda_and_mla(text, linear)
    if _natural(text, "kv_lora_rank"):
        return RequestMemory(layers * _mla(text), kv_divided=False)
    heads = _natural(text, "num_attention_heads")
    groups = _natural(text, "num_key_value_heads") or heads
    width = _natural(text, "head_dim") or (_natural(text, "hidden_size") // heads if heads else 0)
    if not groups or not width:
        return None
    return RequestMemory(layers * 2 * groups * width, kv_divided=True)


def _kda_and_mla(text: Mapping[str, Any], linear: Mapping[str, Any]) -> RequestMemory | None:
    kda, full = linear.get("kda_layers"), linear.get("full_attn_layers")
    heads, width, taps = (_natural(linear, key) for key in ("num_heads", "head_dim", "short_conv_kernel_size"))
    if not isinstance(kda, list) or not isinstance(full, list) or not heads or not width or not taps:
        return None
    return RequestMemory(
        len(full) * _mla(text),
        kv_divided=False,
        state_elements=len(kda) * heads * width * width,
        convolution_elements=len(kda) * 3 * heads * width * (taps - 1),  # of queries, keys and values
    )


def _mla(text: Mapping[str, Any]) -> int:
    return _natural(text, "kv_lora_rank") + _natural(text, "qk_rope_head_dim")


def _natural(block: Mapping[str, Any], key: str) -> int:
    value = block.get(key)
    return value if type(value) is int and value > 0 else 0
