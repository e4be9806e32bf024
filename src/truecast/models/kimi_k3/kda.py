"""The KDA layer: short convolutions, gates, the linear attention itself, the gated output norm."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from truecast.models.fused import fused, suits
from truecast.models.kimi_k3.config import K3Config
from truecast.models.kimi_k3.kda_chunked import CHUNK, MAX_EXPONENT, chunked
from truecast.models.kimi_k3.kda_recurrent import recurrent
from truecast.models.linear import Linear
from truecast.models.precision import like, promote
from truecast.models.rows import Rows, by_documents
from truecast.models.taps import Taps

_ELEMENTS = 1 << 28
"""So many elements of q (tokens times heads times width) are worked on at a time: a gigabyte of float32."""

_KERNEL_ELEMENTS = 1 << 29
"""The same where the kernel runs, which keeps less and wants many heads at once."""

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
    elements = _KERNEL_ELEMENTS if suits(x) else _ELEMENTS
    limit = max(1, elements // (config.kda_heads * config.kda_head_dim))
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
    projected = [rows.pad(linear(x, taps)) for linear in (w.q, w.k, w.v)]
    raw, logits = w.decay_b(w.decay_a(x, taps), taps), w.beta(x, taps)
    attend = _in_one_kernel if _kernel_suits(projected[0], raw, w, config) else _in_steps
    o = rows.flat(attend(rows, projected, raw, logits, w, config, carried))
    return w.out(like(_normed_and_gated(o, w.gate(x, taps), w.out_norm, config.eps), x), taps)


def _in_steps(
    rows: Rows, projected: list[Tensor], raw: Tensor, logits: Tensor, w: Kda, config: K3Config, carried: KdaCache
) -> Tensor:
    """From the projections ``[B, T, D]`` three times, ``[n, D]`` and ``[n, H]`` to ``[B, T, H, V]``; float32 at least."""
    heads, width = config.kda_heads, config.kda_head_dim
    tails = carried.tails or (None, None, None)
    mixed: list[Tensor] = []
    carried.tails = []
    for x, weight, before in zip(projected, w.convolutions, tails, strict=True):
        y, tail = short_convolution(x, weight, before)
        mixed.append(promote(y).reshape(*y.shape[:2], heads, width))
        carried.tails.append(tail)
    q, k, v = _unit(mixed[0]) * width**-0.5, _unit(mixed[1]), mixed[2]
    decay = log_decay(promote(raw).reshape(-1, heads, width), w.a_log, w.dt_bias, config.gate_lower_bound)
    a, beta = rows.pad(decay), rows.pad(torch.sigmoid(promote(logits)))
    if q.shape[1] == 1:
        o, carried.state = recurrent(q, k, v, a, beta, carried.state)
    else:
        o, carried.state = chunked(q, k, v, a, beta, carried.state, config.gate_lower_bound)
    return o


def _kernel_suits(q: Tensor, raw: Tensor, w: Kda, config: K3Config) -> bool:
    """Can and should the kernel run on these?"""
    bound, width = config.gate_lower_bound, config.kda_head_dim
    return (
        q.shape[1] > 1
        and suits(q, raw, *w.convolutions, w.a_log, w.dt_bias)
        and bound is not None
        and -bound * CHUNK <= MAX_EXPONENT
        and width in (16, 32, 64, 128)
        and config.conv_taps > 1
    )


def _in_one_kernel(
    rows: Rows, projected: list[Tensor], raw: Tensor, logits: Tensor, w: Kda, config: K3Config, carried: KdaCache
) -> Tensor:
    """The same as :func:`_in_steps` on a CUDA device. What lies in the padding may differ."""
    from truecast.models.kimi_k3 import kda_cuda

    assert config.gate_lower_bound is not None
    out, state = kda_cuda.attend(
        projected,
        w.convolutions,
        carried.tails,
        rows.pad(raw),
        rows.pad(logits),
        w.a_log,
        w.dt_bias,
        carried.state,
        config.gate_lower_bound,
        _QK_EPS,
    )
    before = carried.tails or (None, None, None)
    carried.tails = [_tail(x, tail, config.conv_taps) for x, tail in zip(projected, before, strict=True)]
    carried.state = state
    return out


@fused
def _normed_and_gated(o: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of each head's output, times its gate. ``[n, H, V]``, ``[n, H V]``, ``[V]`` -> ``[n, H V]`` like ``gate``."""
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + eps) * like(weight, o)
    return like(o.flatten(1) * torch.sigmoid(promote(gate)), gate)


def _tail(x: Tensor, before: Tensor | None, taps: int) -> Tensor:
    """The last ``taps - 1`` projections, those before the first token included. ``[B, T, D]`` -> ``[B, taps - 1, D]``."""
    if x.shape[1] < taps - 1:
        earlier = x.new_zeros(x.shape[0], taps - 1, x.shape[2]) if before is None else before
        x = torch.cat([earlier, x], dim=1)
    return x[:, x.shape[1] - (taps - 1) :].clone()


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
