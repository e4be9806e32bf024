"""Are two loaded pieces of a model the same weights, in whatever layouts they are stored?"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch

from truecast.models.base import Decoder


def same_weights(ref: Any, cand: Any) -> bool:
    """Do two layers, heads or parts of them hold equal numbers? Packed matrices are compared as decoded.

    Walks dataclasses, sequences and tensors; ends at the first difference. Equal as numbers: -0 is 0, NaN nothing.
    """
    if isinstance(ref, torch.Tensor) or isinstance(cand, torch.Tensor):
        return (
            isinstance(ref, torch.Tensor)
            and isinstance(cand, torch.Tensor)
            and ref.shape == cand.shape
            and torch.equal(ref.to(_wider(ref, cand)), cand.to(_wider(ref, cand)))
        )
    if isinstance(ref, (list, tuple)) and isinstance(cand, (list, tuple)):
        return len(ref) == len(cand) and all(same_weights(a, b) for a, b in zip(ref, cand, strict=True))
    decode_ref, decode_cand = getattr(ref, "weight", None), getattr(cand, "weight", None)
    if callable(decode_ref) and callable(decode_cand):
        return same_weights(decode_ref(), decode_cand())
    if is_dataclass(ref) and is_dataclass(cand):
        names = [f.name for f in fields(ref)]
        return names == [f.name for f in fields(cand)] and all(
            same_weights(getattr(ref, name), getattr(cand, name)) for name in names
        )
    return bool(ref == cand)


def layers_by_suspicion(ref: Decoder, cand: Decoder) -> list[int]:
    """Layers in the order in which a difference costs least to find: stored in another form first, then by size."""
    return sorted(range(ref.layers), key=lambda i: (_forms(ref, i) == _forms(cand, i), _bytes(ref, i), i))


def _forms(model: Decoder, layer: int) -> set[tuple[str, str, tuple[int, ...]]]:
    return {(t.name, t.dtype, t.shape) for t in model.layer_tensors(layer)}


def _bytes(model: Decoder, layer: int) -> int:
    return sum(t.nbytes for t in model.layer_tensors(layer))


def _wider(a: torch.Tensor, b: torch.Tensor) -> torch.dtype:
    return torch.promote_types(a.dtype, b.dtype) if a.dtype != b.dtype else a.dtype
