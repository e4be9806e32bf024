"""Kimi-K3: what its layers and its head are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from truecast.models.head import head_matrix
from truecast.models.hidden import Hidden
from truecast.models.kimi_k3 import weights
from truecast.models.kimi_k3.attn_res import AttnRes, mix
from truecast.models.kimi_k3.config import K3Config
from truecast.models.kimi_k3.kda import KdaCache
from truecast.models.kimi_k3.layer import K3Layer
from truecast.models.kimi_k3.mla import MlaCache
from truecast.models.norm import rms_norm
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


@dataclass(frozen=True, slots=True)
class KimiK3:
    """See :class:`truecast.models.model.Architecture`."""

    config: K3Config
    family: ClassVar[str] = "kimi_k3"

    def layer(self, i: int, prefix: str, stored: Stored) -> K3Layer:
        """See :class:`truecast.models.model.Architecture`."""
        return weights.layer(self.config, i, prefix, stored)

    def head(self, prefix: str, stored: Stored) -> K3Head:
        """See :class:`truecast.models.model.Architecture`."""
        config = self.config
        res = weights.attn_res(config, f"{prefix}output_attn_res", stored)
        norm = stored.tensor(f"{prefix}norm.weight", (config.hidden,))
        return K3Head(config, res, norm, head_matrix(prefix, stored, config.vocab, config.hidden, config.tied))

    def new_cache(self) -> list[KdaCache | MlaCache]:
        """See :class:`truecast.models.base.Decoder`."""
        return [KdaCache() if self.config.is_kda(i) else MlaCache() for i in range(self.config.layers)]
