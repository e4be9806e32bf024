"""What one layer hands to the next."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Hidden:
    """The residual stream ``[N, hidden]``, and the block residuals (AttnRes) of Kimi-K3, each ``[N, hidden]``.

    A snapshot never changes once it is there; layers only append. Models without AttnRes have none.
    """

    stream: Tensor
    snapshots: tuple[Tensor, ...] = ()
