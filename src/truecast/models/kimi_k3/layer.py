"""One decoder layer: AttnRes, attention, AttnRes, feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from truecast.models.hidden import Hidden
from truecast.models.kimi_k3 import kda, mla
from truecast.models.kimi_k3.attn_res import AttnRes, mix
from truecast.models.kimi_k3.config import K3Config
from truecast.models.kimi_k3.kda import Kda, KdaCache
from truecast.models.kimi_k3.mla import Mla, MlaCache
from truecast.models.kimi_k3.moe import Mlp, Moe, mlp, moe
from truecast.models.memory import nbytes
from truecast.models.norm import rms_norm
from truecast.models.rows import Rows
from truecast.models.taps import PLAIN, Taps


@dataclass(frozen=True, slots=True)
class K3Layer:
    """Layer ``index`` (0-based) with its weights.

    ``attention_res`` is None in layer 0, which has nothing to mix; the checkpoint's tensors for it are never used.
    """

    config: K3Config
    index: int
    attention_res: AttnRes | None
    attention_norm: Tensor
    attention: Kda | Mla
    mlp_res: AttnRes
    mlp_norm: Tensor
    feed_forward: Mlp | Moe

    @property
    def nbytes(self) -> int:
        """What its weights take in memory."""
        return nbytes(self)

    def __call__(
        self, hidden: Hidden, rows: Rows, taps: Taps = PLAIN, cache: KdaCache | MlaCache | None = None
    ) -> Hidden:
        """See :class:`truecast.models.base.Layer`."""
        config, stream, snapshots = self.config, hidden.stream, hidden.snapshots
        x = stream
        if snapshots:
            assert self.attention_res is not None
            x = mix(stream, snapshots, self.attention_res, config.eps)
        x = self._attend(rms_norm(x, self.attention_norm, config.eps), rows, taps, cache)
        if self.index % config.attn_res_block == 0:
            snapshots = (*snapshots, stream)
            stream = x
        else:
            stream = stream + x
        x = rms_norm(mix(stream, snapshots, self.mlp_res, config.eps), self.mlp_norm, config.eps)
        feed = self.feed_forward
        z = moe(x, feed, config, taps) if isinstance(feed, Moe) else mlp(x, feed, config, taps)
        return Hidden(stream + z, snapshots)

    def _attend(self, x: Tensor, rows: Rows, taps: Taps, cache: KdaCache | MlaCache | None) -> Tensor:
        if isinstance(self.attention, Kda):
            assert cache is None or isinstance(cache, KdaCache)
            return kda.attention(x, self.attention, self.config, rows, taps, cache)
        assert cache is None or isinstance(cache, MlaCache)
        return mla.attention(x, self.attention, self.config, self.index, rows, taps, cache)
