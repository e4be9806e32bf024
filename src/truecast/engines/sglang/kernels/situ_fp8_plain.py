"""SiTU and FP8 quantization in plain PyTorch: what the kernel of :mod:`.situ_fp8` stands for.

``y = beta tanh(g / beta) sigmoid(g) * lb tanh(u / lb)``, the second factor ``u`` itself where there is no ``lb``;
``out = E4M3(clamp(y / scale, -448, 448))``, rounded to nearest even. A NaN stays one; no other number becomes one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 448.0
LEAST_AMAX = 1e-10
"""Of rows that are all zero: SGLang's own floor."""
MOST_AMAX = 3e38


@dataclass(frozen=True, slots=True)
class Situ:
    """The activation's two numbers, as the model's config.json gives them."""

    beta: float
    linear_beta: float | None


def situ(x: Tensor, form: Situ) -> Tensor:
    """Shapes: ``[..., 2 I]``, gate before up, to ``[..., I]`` float32."""
    gate, up = x.float().chunk(2, dim=-1)
    if form.linear_beta is not None:
        up = form.linear_beta * torch.tanh(up / form.linear_beta)
    return form.beta * torch.tanh(gate / form.beta) * torch.sigmoid(gate) * up


def quantize(x: Tensor, out: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """Write the first ``counts[e]`` rows of each expert; the rest of ``out`` stays as it is.

    Shapes: ``x`` ``[E, T, 2 I]``, ``out`` ``[E, T, I]`` E4M3, ``scale`` ``[1]`` or ``[E]`` float32, ``counts`` ``[E]``.
    """
    y = situ(x, form) / scale.float().reshape(-1, 1, 1)
    rounded = y.clamp(-LARGEST, LARGEST).to(out.dtype)
    for expert, rows in enumerate(counts.clamp(max=x.shape[1]).tolist()):
        out[expert, :rows].copy_(rounded[expert, :rows])


def dynamic_scale(x: Tensor, scale: Tensor, counts: Tensor, form: Situ) -> None:
    """``scale[0] = max |y| / 448`` over the real rows, never zero and always finite; NaNs are not looked at."""
    real = torch.arange(x.shape[1], device=x.device) < counts[:, None]
    y = situ(x, form).abs().nan_to_num(0.0, torch.inf).masked_fill(~real[..., None], 0)
    scale.copy_((y.max() if y.numel() else y.sum()).clamp(LEAST_AMAX, MOST_AMAX) / LARGEST)
