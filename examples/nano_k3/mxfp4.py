"""Weights rounded to MXFP4 on the training device, by the rule of :mod:`truecast.casts.bf16_to_mxfp4` to the bit."""

from __future__ import annotations

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
