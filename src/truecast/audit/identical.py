"""The short way: two checkpoints whose decoded weights are all equal need no forward pass."""

from __future__ import annotations

import gc

import torch

from truecast.audit.memory import trim
from truecast.audit.prefetch import prefetched
from truecast.audit.same import layers_by_suspicion, same_weights
from truecast.audit.stream import Progress
from truecast.models.base import Decoder, Layer


@torch.no_grad()
def identical(ref: Decoder, cand: Decoder, ahead: bool, progress: Progress | None) -> bool:
    """Are all decoded weights equal, embedding and head included? Ends at the first layer that differs.

    Layers that are stored in another form on the two sides are looked at first, the smallest of them before all.
    """
    for part in ("load_head", "load_embedding"):
        if not same_weights(getattr(ref, part)(), getattr(cand, part)()):
            return False
    order = layers_by_suspicion(ref, cand)
    total = sum(t.nbytes for model in (ref, cand) for i in order for t in model.layer_tensors(i))

    def load(place: int) -> tuple[Layer, Layer]:
        return ref.load_layer(order[place]), cand.load_layer(order[place])

    for place, pair in enumerate(prefetched(load, 0, len(order), ahead)):
        if not same_weights(*pair):
            return False
        del pair
        gc.collect()
        trim()
        if progress:
            done = sum(t.nbytes for model in (ref, cand) for t in model.layer_tensors(order[place]))
            progress("compare", done, total)
    return True
