"""Weights rounded to MXFP4 on the training device, by the rule of :mod:`truecast.casts.bf16_to_mxfp4` to the bit."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32


def rounded(weights: Tensor) -> Tensor:
    """The values that MXFP4 stores for these. Shapes: float32 ``[..., K]`` -> the same, K a multiple of 32."""
    blocks = weights.reshape(*weights.shape[:-1], -1, BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    exponent = (
        torch.frexp(amax).exponent - 3
    )  # amax = f * 2^e, f in [0.5, 1): floor(log2) is e - 1, and E2M1 reaches 2^2
    exponent = torch.where(amax == 0, -127, exponent.clamp(-127, 127))
    scaled = blocks * _power(-exponent)
    size = scaled.abs()
    value = torch.zeros_like(size)
    for midpoint, tie_goes_up, step in _STEPS:
        value = value + step * ((size >= midpoint) if tie_goes_up else (size > midpoint))
    return (torch.copysign(value, scaled) * _power(exponent)).reshape(weights.shape)


def _power(exponent: Tensor) -> Tensor:
    """``2^exponent``, exactly, from the bits of a float32. Shapes: int32 in -127..127 -> float32."""
    bits = torch.where(exponent == -127, 1 << 22, (exponent + 127) << 23)  # 2^-127 is subnormal
    return bits.to(torch.int32).view(torch.float32)


_STEPS = (
    (0.25, False, 0.5), (0.75, True, 0.5), (1.25, False, 0.5), (1.75, True, 0.5), (2.5, False, 1.0), (3.5, True, 1.0),
    (5.0, False, 2.0),
)  # fmt: skip
"""Midpoint between two codes, whether a tie goes up (to the even code), and the step from the lower to the upper."""
