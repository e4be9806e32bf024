"""What is known when a model is about to be loaded: which checkpoint, which arguments, which place among the ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
"""Where SGLang's models read the number of routed experts in config.json."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One model that a rank of the server is about to load; a draft model has its own.

    ``quantization`` is SGLang's name of the method (``compressed-tensors``, ``mxfp4``, ``modelopt_fp4``, ``w4afp8``,
    ...) or None. ``config`` is the text model's part of config.json, ``quantization_config`` the block that SGLang
    reads, empty if there is none. ``moe_backend``, ``linear_backend`` (of FP4 linear layers), ``prefill_attention``
    and ``decode_attention`` are SGLang's names, after its own choice of defaults. ``kv_cache_dtype`` is ``auto`` or
    what the user asked for. ``capability`` is the GPU's, None on a CPU. ``expert_places_fixed`` says that expert
    ``e`` lives on rank ``e // (experts / ep_size)`` and stays there: no EPLB, no redundant experts, no initial
    location asked for. ``environment`` is what the server sees: this process's, unless given.
    """

    version: str
    model: str
    quantization: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    quantization_config: Mapping[str, Any] = field(default_factory=dict)
    moe_backend: str = "auto"
    linear_backend: str = "auto"
    prefill_attention: str = ""
    decode_attention: str = ""
    kv_cache_dtype: str = "auto"
    page_size: int = 1
    capability: tuple[int, int] | None = None
    tp_rank: int = 0
    tp_size: int = 1
    ep_rank: int = 0
    ep_size: int = 1
    expert_places_fixed: bool = True
    is_draft: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    @property
    def experts(self) -> int:
        """Routed experts of the model, 0 for a dense one; the most of any kind where each modality has its own."""
        for key in EXPERT_COUNTS:
            count = self.config.get(key)
            counts = [n for n in (count if isinstance(count, list | tuple) else [count]) if isinstance(n, int)]
            if counts:
                return max(counts)
        return 0

    @property
    def activation(self) -> str:
        """``hidden_act`` of config.json; SiLU if it says nothing."""
        return str(self.config.get("hidden_act", "silu"))
