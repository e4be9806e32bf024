"""SiTU, the activation of every feed-forward block, and the gate on what attention gives."""

from __future__ import annotations

import torch
from torch import Tensor

from truecast.models.fused import fused
from truecast.models.precision import like, promote


@fused
def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """``beta tanh(g / beta) sigmoid(g) * lb tanh(u / lb)`` in at least float32, cast back. Bounded by beta * lb."""
    g, u = promote(gate), promote(up)
    return like(beta * torch.tanh(g / beta) * torch.sigmoid(g) * (linear_beta * torch.tanh(u / linear_beta)), gate)


@fused
def gated(x: Tensor, gate: Tensor) -> Tensor:
    """``x * sigmoid(gate)``, any shape."""
    return x * torch.sigmoid(gate)
