"""Feed-forward: the dense block, and the latent mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from truecast.models.experts import Experts
from truecast.models.fused import suits
from truecast.models.kimi_k3.activation import situ
from truecast.models.kimi_k3.config import K3Config
from truecast.models.linear import Linear
from truecast.models.norm import rms_norm
from truecast.models.precision import like, promote
from truecast.models.taps import Taps

_TOKENS = 1 << 15
"""So many tokens go through a dense block, or are widened for the router, at a time."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """A dense block: ``down(situ(gate x, up x))``."""

    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Moe:
    """The router at full width, the experts in the latent space, the shared experts beside them."""

    router: Tensor
    """``[E, hidden]``."""
    bias: Tensor
    """``[E]``: for the choice of experts only."""
    down: Linear
    """``[latent, hidden]``."""
    norm: Tensor
    """``[latent]``: after the experts' weighted sum."""
    up: Linear
    """``[hidden, latent]``."""
    experts: Experts
    shared: Mlp


def mlp(x: Tensor, w: Mlp, config: K3Config, taps: Taps) -> Tensor:
    """Shapes: ``[N, hidden]`` -> ``[N, hidden]``."""
    return torch.cat([_mlp(some, w, config, taps) for some in torch.split(x, _TOKENS)])


def _mlp(x: Tensor, w: Mlp, config: K3Config, taps: Taps) -> Tensor:
    return w.down(situ(w.gate(x, taps), w.up(x, taps), config.situ_beta, config.situ_linear_beta), taps)


def route(x: Tensor, w: Moe, config: K3Config) -> tuple[Tensor, Tensor]:
    """Experts of each token and their weights. Shapes: ``[N, hidden]`` -> ``[N, k]`` int64, ``[N, k]`` float32.

    The bias decides who is chosen and is in no weight.
    """
    parts = [_route(some, w, config) for some in torch.split(x, _TOKENS)]
    return torch.cat([ids for ids, _ in parts]), torch.cat([shares for _, shares in parts])


def _route(x: Tensor, w: Moe, config: K3Config) -> tuple[Tensor, Tensor]:
    scores = torch.sigmoid(_router_logits(x, w.router))
    ids = torch.topk(scores.detach() + like(w.bias, scores), config.experts_per_token, dim=-1).indices
    shares = scores.gather(-1, ids)
    if config.renormalize:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return ids, shares * config.routed_scaling_factor


def _router_logits(x: Tensor, router: Tensor) -> Tensor:
    """In at least float32. Where both are bfloat16 their products are exact, and tensor cores sum them in float32."""
    if x.dtype == router.dtype == torch.bfloat16 and suits(x, router):
        return torch.mm(x, router.T, out_dtype=torch.float32)
    wide = promote(x)
    return wide @ like(router, wide).T


def moe(x: Tensor, w: Moe, config: K3Config, taps: Taps) -> Tensor:
    """Shapes: ``[N, hidden]`` -> ``[N, hidden]``."""
    ids, shares = route(x, w, config)
    activation = partial(situ, beta=config.situ_beta, linear_beta=config.situ_linear_beta)
    routed = like(w.experts(w.down(x, taps), ids, shares, activation, taps), x)
    routed = rms_norm(routed, w.norm, config.eps)
    return w.up(routed, taps) + mlp(x, w.shared, config, taps)
