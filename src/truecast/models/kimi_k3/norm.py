"""Norms and the activation."""

from __future__ import annotations

import torch
from torch import Tensor

from truecast.models.precision import like, promote


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``w * cast(x / sqrt(mean(x^2) + eps))``: cast to the dtype of ``x`` before the weight, as released.

    Shapes: ``[..., d]``, ``[d]`` -> ``[..., d]``.
    """
    wide = promote(x)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return like(normed, x) * like(weight, x)


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """``beta tanh(g / beta) sigmoid(g) * lb tanh(u / lb)`` in at least float32, cast back. Bounded by beta * lb."""
    g, u = promote(gate), promote(up)
    return like(beta * torch.tanh(g / beta) * torch.sigmoid(g) * (linear_beta * torch.tanh(u / linear_beta)), gate)
