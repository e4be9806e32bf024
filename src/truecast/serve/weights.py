"""What of a checkpoint every GPU holds, and what is divided among them.

Rule: routed experts are divided evenly, whether by experts (EP) or inside each (TP). Of the rest, engines keep vectors
(norms, biases) and some projections whole on every GPU and split the others by tensor parallelism. Which projections
stay whole is a fact of an engine's model code: Kimi-K3's are listed; for other families everything that is no vector
counts as split, so that their figures are lower bounds.

Source: sgl-project/sglang 0.5.20, models/kimi_k3.py and models/deepseek_v2.py (ReplicatedLinear, MoEGate, and the
vision tower, which is built without tensor parallelism).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_EXPERT = re.compile(r"\.experts\.(\d+\.|gate_up_proj|down_proj)")
_WHOLE = {
    "kimi_k3": re.compile(
        r"\.(routed_expert_(down|up)_proj|q_a_proj|kv_a_proj_with_mqa|f_a_proj|\w+_res_proj|block_sparse_moe\.gate)\."
        r"|^(vision_tower|mm_projector)\."
    )
}


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a checkpoint: routed experts, what tensor parallelism splits, what every GPU holds whole."""

    experts: int
    split: int
    whole: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.experts + self.split + self.whole

    def per_gpu(self, gpus: int) -> int:
        """Bytes on each of ``gpus`` GPUs that share one copy of the model, rounded up."""
        return -(-(self.experts + self.split) // gpus) + self.whole


def weights_of(tensors: Iterable[tuple[str, tuple[int, ...], int]], family: str) -> Weights:
    """Add up ``(name, shape, bytes)`` of every tensor that is written, by the rule above for this family."""
    experts = split = whole = 0
    pattern = _WHOLE.get(family)
    for name, shape, size in tensors:
        if _EXPERT.search(name):
            experts += size
        elif len(shape) < 2 or (pattern is not None and pattern.search(name)):
            whole += size
        else:
            split += size
    return Weights(experts, split, whole)
