"""What of a model the time of a decoding step depends on."""

from __future__ import annotations

from dataclasses import dataclass

from truecast.errors import InputError
from truecast.serve.stored_model import StoredModel

_BITS = {"mxfp4": 4.25, "nvfp4": 4.5, "w4afp8": 4.125, "fp8": 8, "bf16": 16}
"""Bits a weight of an expert takes, its scales included."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``expert_bytes``: all routed experts; ``split_bytes``, ``whole_bytes``: the other weights that ranks divide, and
    that each holds. ``experts`` of a layer, of which a token visits ``visited``. ``kv_token_bytes``: of the cache, a
    token, which ranks divide if ``kv_divided``; ``state_bytes``: recurrent states of a request, over all ranks.
    ``expert_flops``, ``flops``: of a token over all ranks, by its routed experts and by all weights.
    """

    format: str
    layers: int
    hidden: int
    experts: int
    visited: int
    expert_bytes: int
    split_bytes: int
    whole_bytes: int
    kv_token_bytes: int
    kv_divided: bool
    state_bytes: int
    expert_flops: float
    flops: float


def shape_of(model: StoredModel, *, kv_bytes: int = 2, state_bytes: int = 4) -> Shape:
    """Read it off a checkpoint. Raises: InputError for a model that is no mixture of experts, or of unknown attention.

    Weights beside the experts count as two bytes each.
    """
    hidden = model.text.get("hidden_size")
    if not model.experts or not model.experts_per_token or not model.weights.experts or type(hidden) is not int:
        raise InputError("its speed cannot be forecast: no mixture of experts", where=model.location)
    if model.experts_per_token > model.experts:
        raise InputError(
            f"its speed cannot be forecast: a token visits {model.experts_per_token} of {model.experts} experts",
            where=model.location,
        )
    if model.request is None or model.format not in _BITS:
        raise InputError("its speed cannot be forecast: attention or format is not known", where=model.location)
    weights = model.weights
    visited = weights.experts * 8 / _BITS[model.format] * model.experts_per_token / model.experts
    return Shape(
        model.format,
        model.layers,
        hidden,
        model.experts,
        model.experts_per_token,
        weights.experts,
        weights.split,
        weights.whole,
        model.request.kv_elements * kv_bytes,
        model.request.kv_divided,
        model.request.state_elements * state_bytes + model.request.convolution_elements * 2,
        2 * visited,
        2 * visited + weights.split + weights.whole,
    )
