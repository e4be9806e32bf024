"""What low-precision activations are rounded to, as values: quantized and dequantized again.

Every function takes ``[n, in]`` and returns float32 ``[n, in]``. Rounding is to nearest, ties to even; what exceeds a
format saturates.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E4M3_TOP_EXPONENT = 8
"""448 lies in [2^8, 2^9)."""


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """The nearest E4M3 value. Any shape; float32."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def e2m1(x: torch.Tensor) -> torch.Tensor:
    """The nearest E2M1 value: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Any shape; float32."""
    size = x.float().abs().clamp(max=E2M1_MAX)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))  # even codes are even multiples of the step
    return torch.copysign(torch.round(size / step) * step, x.float())


def fp8_tensor(x: torch.Tensor, scale: float) -> torch.Tensor:
    """E4M3 under one static scale: what exceeds ``448 * scale`` saturates."""
    return e4m3(x.float() / scale) * scale


def fp8_token(x: torch.Tensor) -> torch.Tensor:
    """E4M3 under one scale a token, its largest magnitude / 448."""
    wide = x.float()
    scale = wide.abs().amax(1, keepdim=True) / E4M3_MAX
    return e4m3(wide / torch.where(scale == 0, 1.0, scale)) * scale


def mxfp8(x: torch.Tensor) -> torch.Tensor:
    """E4M3 under a power of two for each 32 elements: 2^(floor(log2 of their largest) - 8).

    Source: OCP Microscaling Formats 1.0, section 6.3. Values between 448 and 512 times the scale saturate.
    """
    blocks = _blocks(x, 32)
    exponent = torch.frexp(blocks.abs().amax(2, keepdim=True)).exponent - 1 - E4M3_TOP_EXPONENT
    scale = torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent.clamp(-127, 127))
    return _joined((e4m3((blocks.double() / scale).float()).double() * scale).float(), x)


def nvfp4(x: torch.Tensor, global_scale: float | None = None) -> torch.Tensor:
    """E2M1 under an E4M3 scale for each 16 elements, times one global scale.

    Without a stored ``global_scale`` it is the largest magnitude of all of ``x`` / (448 * 6), so that the largest block
    scale is 448. A block whose scale rounds to zero becomes zero.
    """
    blocks = _blocks(x, 16)
    top = blocks.abs().amax(2, keepdim=True)
    whole = top.amax() / (E4M3_MAX * E2M1_MAX) if global_scale is None else torch.tensor(global_scale, device=x.device)
    if float(whole) == 0:
        return torch.zeros_like(x, dtype=torch.float32)
    scale = e4m3(top / E2M1_MAX / whole) * whole
    return _joined(e2m1(blocks / torch.where(scale == 0, torch.inf, scale)) * scale, x)


def _blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    """float32 ``[n, blocks, size]``, the last block filled up with zeros."""
    return pad(x.float(), (0, -x.shape[1] % size)).reshape(x.shape[0], -1, size)


def _joined(blocks: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return blocks.reshape(like.shape[0], -1)[:, : like.shape[1]]
