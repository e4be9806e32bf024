"""Rotary positions, as Llama applies them: channel ``i`` turns with channel ``i + d/2``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

import torch
from torch import Tensor

from truecast.models.precision import like, promote
from truecast.models.settings import Settings


def frequencies(text: Settings, width: int) -> Tensor:
    """Angle of one step for each pair of channels, from the config. Shape: ``[width / 2]`` float64.

    Knows plain RoPE and ``llama3`` scaling, spelled ``rope_scaling`` or ``rope_parameters``.
    Raises: InputError for another kind.
    """
    name = "rope_parameters" if isinstance(text.document.get("rope_parameters"), Mapping) else "rope_scaling"
    scaling = text.block(name) if text.document.get(name) is not None else Settings({}, text.where)
    holder = scaling if scaling.document.get("rope_theta") is not None else text
    theta = 10000.0 if holder.document.get("rope_theta") is None else holder.positive("rope_theta")
    plain = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    kind: Any = scaling.document.get("rope_type", scaling.document.get("type", "default"))
    if kind == "default":
        return plain
    if kind != "llama3":
        raise text.error(name, f"is of type {short(kind)}; the reference model knows plain RoPE and llama3")
    return _llama3(plain, scaling)


def _llama3(plain: Tensor, scaling: Settings) -> Tensor:
    """Slow pairs are slowed by ``factor``, fast ones stay, those between are interpolated.

    Source: meta-llama/llama-models, models/llama3/model.py (``apply_scaling``).
    """
    factor, low, high = (scaling.positive(n) for n in ("factor", "low_freq_factor", "high_freq_factor"))
    if not high > low:
        raise scaling.error("high_freq_factor", f"is {high}, not above low_freq_factor, {low}")
    turns = scaling.natural("original_max_position_embeddings") * plain / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return share * plain + (1 - share) * plain / factor


def rotate(x: Tensor, positions: Tensor, steps: Tensor) -> Tensor:
    """Turn each pair of channels by position times step. Shapes: ``[N, H, d]``, ``[N]``, ``[d / 2]`` -> ``[N, H, d]``.

    Angles are taken in float32, as transformers does, or float64 where ``x`` is that.
    """
    angles = promote(positions.to(x.dtype if x.dtype == torch.float64 else torch.float32))
    angles = angles[:, None] * like(steps.to(x.device), angles)
    cos, sin = like(angles.cos(), x)[:, None], like(angles.sin(), x)[:, None]
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
