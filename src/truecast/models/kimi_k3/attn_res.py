"""AttnRes: attention over the residuals of earlier blocks in place of one residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from truecast.models.fused import fused
from truecast.models.precision import like, promote

_TOKENS = 1 << 15
"""So many tokens are widened at a time."""


@dataclass(frozen=True, slots=True)
class AttnRes:
    """Weights of one mix: the norm's ``[hidden]`` and the query ``[1, hidden]``."""

    norm: Tensor
    proj: Tensor

    @property
    def nbytes(self) -> int:
        """What they take in memory."""
        return self.norm.nbytes + self.proj.nbytes


def mix(stream: Tensor, snapshots: Sequence[Tensor], weights: AttnRes, eps: float) -> Tensor:
    """Softmax-weighted sum of the snapshots and the stream, token by token.

    Scores come from the normed values, the sum is over the raw ones. Shapes: ``[N, hidden]`` each -> ``[N, hidden]``.
    """
    query = promote(weights.norm) * promote(weights.proj)[0]
    sources = [torch.split(source, _TOKENS) for source in (*snapshots, stream)]
    return torch.cat([_mix(list(some), query, eps) for some in zip(*sources, strict=True)])


@fused
def _mix(sources: Sequence[Tensor], query: Tensor, eps: float) -> Tensor:
    scores = []
    for source in sources:
        wide = promote(source)
        scores.append((wide * like(query, wide)).sum(-1) * torch.rsqrt(wide.square().mean(-1) + eps))
    top = reduce(torch.maximum, scores)  # softmax by hand: as a reduction over a stack it does not fuse with the rest
    exps = [torch.exp(score - top) for score in scores]
    whole = reduce(torch.add, exps)
    mixed = torch.zeros_like(promote(sources[0]))
    for source, part in zip(sources, exps, strict=True):
        mixed = mixed + (part / whole)[:, None] * promote(source)
    return like(mixed, sources[0])
