"""Kimi-K3 as a decoder whose layers are loaded one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from truecast.models.hidden import Hidden
from truecast.models.kimi_k3 import weights
from truecast.models.kimi_k3.attn_res import AttnRes, mix
from truecast.models.kimi_k3.config import K3Config
from truecast.models.kimi_k3.kda import KdaCache
from truecast.models.kimi_k3.layer import K3Layer
from truecast.models.kimi_k3.mla import MlaCache
from truecast.models.norm import rms_norm
from truecast.models.parts import Parts
from truecast.models.stored import Stored


@dataclass(frozen=True, slots=True)
class K3Head:
    """The mix over all blocks, the last norm, and the head's matrix."""

    config: K3Config
    res: AttnRes
    norm: Tensor
    weight: Tensor

    def final(self, hidden: Hidden) -> Tensor:
        """See :class:`truecast.models.base.Head`."""
        mixed = mix(hidden.stream, hidden.snapshots, self.res, self.config.eps)
        return rms_norm(mixed, self.norm, self.config.eps)


class K3Model(Parts):
    """See :class:`truecast.models.base.Decoder`."""

    family = "kimi_k3"

    def __init__(self, config: K3Config, parts: Parts) -> None:
        super().__init__(parts.checkpoint, parts.contents, parts.device, parts.dtype)
        self.config = config
        self.layers, self.vocab, self.hidden = config.layers, config.vocab, config.hidden

    def build_layer(self, i: int, stored: Stored) -> K3Layer:
        """See :class:`truecast.models.parts.Parts`."""
        return weights.layer(self.config, i, self.prefix, stored)

    def build_head(self, stored: Stored) -> K3Head:
        """See :class:`truecast.models.parts.Parts`."""
        res = weights.attn_res(self.config, f"{self.prefix}output_attn_res", stored)
        norm = stored.tensor(f"{self.prefix}norm.weight", (self.hidden,))
        return K3Head(self.config, res, norm, self.head_matrix(stored, self.config.tied))

    def new_cache(self) -> list[KdaCache | MlaCache]:
        """See :class:`truecast.models.base.Decoder`."""
        return [KdaCache() if self.config.is_kda(i) else MlaCache() for i in range(self.layers)]
