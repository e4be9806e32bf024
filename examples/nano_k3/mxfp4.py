"""Experts rounded to MXFP4 inside the training step: the forward pass uses what the checkpoint will store.

The rule is that of :mod:`truecast.casts.bf16_to_mxfp4`, to the bit; gradients pass as if nothing had been rounded
(straight-through estimator).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK = 32


def rounded(weights: Tensor) -> Tensor:
    """The values that MXFP4 stores for these. Shapes: float32 ``[..., K]`` -> the same, K a multiple of 32."""
    blocks = weights.reshape(*weights.shape[:-1], -1, BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(amax).exponent - 3  # amax = f * 2^e, f in [0.5, 1): floor(log2) is e - 1, and E2M1 reaches 2^2
    exponent = torch.where(amax == 0, -127, exponent.clamp(-127, 127))
    scaled = torch.ldexp(blocks, -exponent)
    size = scaled.abs()
    value = torch.zeros_like(size)
    for midpoint, tie_goes_up, step in _STEPS:
        value = value + step * ((size >= midpoint) if tie_goes_up else (size > midpoint))
    return torch.ldexp(torch.copysign(value, scaled), exponent).reshape(weights.shape)


_STEPS = (
    (0.25, False, 0.5), (0.75, True, 0.5), (1.25, False, 0.5), (1.75, True, 0.5), (2.5, False, 1.0), (3.5, True, 1.0),
    (5.0, False, 2.0),
)  # fmt: skip
"""Midpoint between two codes, whether a tie goes up (to the even code), and the step from the lower to the upper."""


class _StraightThrough(torch.autograd.Function):
    """Rounds forward; backward hands the gradient on."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor) -> Tensor:
        """Exactly the rounded values, which ``w + (rounded - w)`` would not be."""
        return rounded(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient as it is."""
        return gradients[0]


def fake_quantized(weights: Tensor) -> Tensor:
    """:func:`rounded`, with a gradient."""
    return _StraightThrough.apply(weights)  # type: ignore[no-any-return, no-untyped-call]
