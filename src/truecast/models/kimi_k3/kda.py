"""The KDA layer: short convolutions, gates, the linear attention itself, the gated output norm."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from truecast.models.kimi_k3.config import K3Config
from truecast.models.kimi_k3.kda_chunked import chunked
from truecast.models.kimi_k3.kda_recurrent import recurrent
from truecast.models.linear import Linear
from truecast.models.precision import like, promote
from truecast.models.rows import Rows, by_documents
from truecast.models.taps import Taps

_ELEMENTS = 1 << 28
"""So many elements of q (tokens times heads times width) are worked on at a time: a gigabyte of float32."""

_QK_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Kda:
    """Weights. D is heads times head_dim, H the heads."""

    q: Linear
    k: Linear
    v: Linear
    gate: Linear
    """``[D, hidden]``: the output gate, of full rank."""
    decay_a: Linear
    decay_b: Linear
    """``[D, r]`` after ``[r, hidden]``: the raw decay."""
    beta: Linear
    out: Linear
    convolutions: tuple[Tensor, Tensor, Tensor]
    """For q, k, v: ``[D, taps]``, the last tap on the current token."""
    a_log: Tensor
    """``[H]``."""
    dt_bias: Tensor
    """``[D]``."""
    out_norm: Tensor
    """``[head_dim]``, shared by the heads."""


@dataclass(slots=True)
class KdaCache:
    """What one KDA layer keeps of one sequence."""

    tails: list[Tensor] = field(default_factory=list)
    """Of q, k and v, the last ``taps - 1`` projections: ``[1, taps - 1, D]``."""
    state: Tensor | None = None
    """``[1, H, K, V]``."""


def attention(x: Tensor, weights: Kda, config: K3Config, rows: Rows, taps: Taps, cache: KdaCache | None) -> Tensor:
    """Output of the layer. Shapes: ``[N, hidden]`` -> ``[N, hidden]``."""
    limit = max(1, _ELEMENTS // (config.kda_heads * config.kda_head_dim))
    run = partial(_documents, weights=weights, config=config, taps=taps, cache=cache, limit=limit)
    return by_documents(rows, limit, run, x)


def _documents(
    rows: Rows, x: Tensor, *, weights: Kda, config: K3Config, taps: Taps, cache: KdaCache | None, limit: int
) -> Tensor:
    """Documents of similar length side by side; a long one in pieces, which hand their state on."""
    carried = KdaCache() if cache is None else cache
    if len(rows.lengths) > 1:
        return _piece(rows, x, weights, config, taps, carried)
    return torch.cat([_piece(Rows((len(p),)), p, weights, config, taps, carried) for p in torch.split(x, limit)])


def _piece(rows: Rows, x: Tensor, w: Kda, config: K3Config, taps: Taps, carried: KdaCache) -> Tensor:
    """Shapes: ``[n, hidden]`` -> ``[n, hidden]``. Changes ``carried``.

    In the padding beta is zero, so that nothing there reaches the state; the decay is one.
    """
    heads, width = config.kda_heads, config.kda_head_dim
    tails = carried.tails or (None, None, None)
    mixed: list[Tensor] = []
    carried.tails = []
    for linear, weight, before in zip((w.q, w.k, w.v), w.convolutions, tails, strict=True):
        y, tail = short_convolution(rows.pad(linear(x, taps)), weight, before)
        mixed.append(promote(y).reshape(*y.shape[:2], heads, width))
        carried.tails.append(tail)
    q, k, v = _unit(mixed[0]) * width**-0.5, _unit(mixed[1]), mixed[2]
    raw = promote(w.decay_b(w.decay_a(x, taps), taps)).reshape(-1, heads, width)
    a = rows.pad(log_decay(raw, w.a_log, w.dt_bias, config.gate_lower_bound))
    beta = rows.pad(torch.sigmoid(promote(w.beta(x, taps))))
    if q.shape[1] == 1:
        o, carried.state = recurrent(q, k, v, a, beta, carried.state)
    else:
        o, carried.state = chunked(q, k, v, a, beta, carried.state, config.gate_lower_bound)
    o = rows.flat(o)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + config.eps) * like(w.out_norm, o)
    o = o.flatten(1) * torch.sigmoid(promote(w.gate(x, taps)))
    return w.out(like(o, x), taps)


def short_convolution(x: Tensor, weight: Tensor, tail: Tensor | None) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution and SiLU, and what the next piece needs of this one.

    Shapes: ``[B, T, D]``, ``[D, taps]``, what came before ``[B, taps - 1, D]`` or None for zeros -> ``[B, T, D]`` and
    ``[B, taps - 1, D]``.
    """
    taps, tokens = weight.shape[1], x.shape[1]
    before = x.new_zeros(x.shape[0], taps - 1, x.shape[2]) if tail is None else tail
    whole = torch.cat([before, x], dim=1)
    wide, w = promote(whole), promote(weight).to(promote(x).dtype)
    y = wide[:, :tokens] * w[:, 0]
    for tap in range(1, taps):
        y = y + wide[:, tap : tap + tokens] * w[:, tap]
    return like(functional.silu(y), x), whole[:, whole.shape[1] - (taps - 1) :]


def log_decay(raw: Tensor, a_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """Log of the decay of each channel, below zero.

    ``lb sigmoid(exp(A_log) (raw + dt_bias))``, or ``-exp(A_log) softplus(raw + dt_bias)`` where the config has no bound.
    Shapes: ``[B, T, H, K]``, ``[H]``, ``[H K]`` -> ``[B, T, H, K]``.
    """
    rate = like(a_log, raw).exp()[:, None]
    shifted = raw + like(dt_bias, raw).reshape(raw.shape[-2:])
    if lower_bound is None:
        return -rate * functional.softplus(shifted)
    return lower_bound * torch.sigmoid(rate * shifted)


def _unit(x: Tensor) -> Tensor:
    """Each head's vector at length one: ``x / sqrt(sum(x^2) + 1e-6)``."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _QK_EPS)
