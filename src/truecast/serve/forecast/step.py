"""How long one step of decoding takes, part by part, from bytes, operations, launches and messages.

A step of N tokens (streams times the verified window) visits fewer experts than N tokens drawn independently, because
neighbouring tokens choose alike: as many as ``N ** spread`` independent ones, a share ``1 - (1 - k/E) ** (N ** spread)``.
Under EP the rank with the most experts decides. Experts and the other weights are read or multiplied, whichever takes
longer. Caches and states of all streams are read, each layer's kernels are launched, and two results a layer are added up
over all ranks. A draft reads its weights and launches its own layers. Four constants were fitted to published speeds; the
others are stated in ``constants``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt
from statistics import NormalDist

from truecast.serve.forecast import constants as c
from truecast.serve.forecast.constants import Fitted
from truecast.serve.forecast.shape import Shape
from truecast.serve.topology import Topology


@dataclass(frozen=True, slots=True)
class Load:
    """What runs: ``topology`` of one replica, its ``tp`` and ``ep`` (SGLang's), ``streams`` at once, ``window`` tokens
    verified a stream and step (1 without speculation), ``context`` tokens that a stream has so far, on average.
    ``dcp``: ranks among which a token's cache is divided. ``tile_fixed``: is Marlin's tile chosen from all experts?"""

    topology: Topology
    tp: int
    ep: int
    streams: float
    window: int = 1
    context: float = 1024
    dcp: int = 1
    tile_fixed: bool = True

    @property
    def tokens(self) -> float:
        """Tokens that one step computes."""
        return self.streams * self.window


def visited_share(shape: Shape, load: Load, spread: float) -> float:
    """Share of a layer's experts that the step reads, on the rank that reads most."""
    missed: float = (1 - shape.visited / shape.experts) ** (load.tokens ** min(spread, 1.0))
    share = 1 - missed
    if load.ep < 2:
        return share
    local = shape.experts / load.ep
    above = NormalDist().inv_cdf((load.ep - 0.375) / (load.ep + 0.25))  # Blom: the largest of that many ranks
    return min(share + above * sqrt(share * (1 - share) / local), 1.0)


def step_seconds(shape: Shape, load: Load, fitted: Fitted) -> dict[str, float]:
    """Seconds of one step, by part."""
    gpu = load.topology.gpu
    hopper = gpu.capability < 100
    read = gpu.bandwidth * c.DENSE_READ
    a_flop = load.tokens / load.tp / (c.BF16_FLOPS[gpu.name] * c.DECODE_FLOPS)
    experts = shape.expert_bytes / load.tp * visited_share(shape, load, fitted.spread)
    experts /= gpu.bandwidth * c.HOPPER_EXPERT_READ if hopper else read
    if hopper and load.ep > 1 and shape.format in c.ON_MARLIN and not load.tile_fixed:
        experts *= c.WRONG_TILE
    cache = load.context * shape.kv_token_bytes / (load.tp if shape.kv_divided else load.dcp)
    kept = load.streams * (cache + 2 * shape.state_bytes / load.tp)  # states are read and written
    parts = {
        "experts": max(experts, shape.expert_flops * a_flop),
        "other weights": max(
            (shape.split_bytes / load.tp + shape.whole_bytes) / read, (shape.flops - shape.expert_flops) * a_flop
        ),
        "caches and states": kept / read,
        "launches": shape.layers * fitted.layer,
        "sums over ranks": _sums(shape, load, load.tokens, fitted.message, fitted.network),
    }
    if load.window > 1:
        drafting = (c.DRAFT_BYTES - c.DRAFT_WHOLE) / load.tp + c.DRAFT_WHOLE
        parts["draft"] = drafting / read + c.DRAFT_LAYERS * fitted.layer
    return parts


def prefill_seconds(shape: Shape, load: Load, tokens: float, fitted: Fitted) -> float:
    """Seconds to read a prompt of so many tokens, nothing else running."""
    rate = c.BF16_FLOPS[load.topology.gpu.name] * c.PREFILL_FLOPS * load.tp
    return tokens * shape.flops / rate + _sums(shape, load, tokens, fitted.message, c.PREFILL_NETWORK)


def _sums(shape: Shape, load: Load, tokens: float, message: float, network: float) -> float:
    nodes = load.topology.nodes
    moved = 2 * (load.tp - 1) / load.tp * tokens * shape.hidden * 2
    once = message + 2 * c.HOP * log2(nodes) + moved / network if nodes > 1 else moved / c.NVLINK
    return 2 * shape.layers * once
