"""RMS norm."""

from __future__ import annotations

import torch
from torch import Tensor

from truecast.models.fused import fused
from truecast.models.precision import like, promote


@fused
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``w * cast(x / sqrt(mean(x^2) + eps))``: cast to the dtype of ``x`` before the weight, as Llama and Kimi-K3 do.

    Shapes: ``[..., d]``, ``[d]`` -> ``[..., d]``.
    """
    wide = promote(x)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return like(normed, x) * like(weight, x)
