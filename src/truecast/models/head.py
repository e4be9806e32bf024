"""The matrix of the head: a tensor of its own, or the embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from truecast.models.embedding import EMBEDDING
from truecast.models.stored import Stored


def head_matrix(prefix: str, stored: Stored, vocab: int, hidden: int, tied: bool) -> Tensor:
    """The head's matrix; the embedding where they are one. Shape: ``[V, hidden]``."""
    names = (prefix.removesuffix("model.") + "lm_head", "lm_head")
    name = next((n for n in names if stored.has(n)), None)
    if name is None and tied:
        return stored.tensor(prefix + EMBEDDING, (vocab, hidden)).to(stored.dtype)
    weight = stored.linear(name or names[0], vocab, hidden).weight
    return weight() if stored.reads else torch.empty(0, device="meta")
