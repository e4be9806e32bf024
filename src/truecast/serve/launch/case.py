"""What is to be launched: the ground on which each setting is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from truecast.serve.hardware import Gpu
from truecast.serve.stored_model import StoredModel

HOPPER = 90
CARD_003 = "model card Radioheading/Kimi-K3-W4AFP8"
CARD_000 = "model card PatronusAI/kimi-k3-nvfp4"
COOKBOOK = "SGLang's cookbook for Kimi-K3"


@dataclass(frozen=True, slots=True)
class Split:
    """One replica: ``gpus`` GPUs on ``nodes`` nodes. ``tp`` is SGLang's ``--tp-size`` (all ranks), ``ep`` its
    ``--ep-size``; each expert lies on ``tp // ep`` ranks. ``why``: reason of the division."""

    tp: int
    ep: int
    nodes: int
    per_node: int
    why: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model: ``path`` is a folder or a repository; ``config`` is its config.json, None where it is not here.
    ``bytes`` of its weights, 0 if not known."""

    path: str
    config: Mapping[str, Any] | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """``version``: SGLang's, as numbers. ``profile``: ``throughput`` or ``latency``. ``streams``: requests that run at a
    time, 0 where that is left to SGLang."""

    model: StoredModel
    gpu: Gpu
    split: Split
    version: tuple[int, ...]
    profile: str
    draft: Draft | None
    streams: int = 0

    @property
    def is_k3(self) -> bool:
        """Kimi-K3, of any size."""
        return self.model.family == "kimi_k3"

    @property
    def hopper(self) -> bool:
        """Compute capability 9.0."""
        return self.gpu.capability == HOPPER

    @property
    def latency(self) -> bool:
        """Few streams, each as fast as can be; else many streams."""
        return self.profile == "latency"
