"""Which numbers are never computed in 16 bits."""

from __future__ import annotations

import torch
from torch import Tensor


def promote(x: Tensor) -> Tensor:
    """``x`` in float64 if it is that, else in float32: statistics of norms, softmaxes, router, KDA's gate and state."""
    return x if x.dtype == torch.float64 else x.float()


def like(w: Tensor, x: Tensor) -> Tensor:
    """``w`` in the dtype of ``x``."""
    return w if w.dtype == x.dtype else w.to(x.dtype)
