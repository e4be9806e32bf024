"""The MLA layer: low-rank queries and keys, no positional encoding, gated output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from truecast.models.kimi_k3.activation import gated
from truecast.models.kimi_k3.config import K3Config
from truecast.models.linear import Linear
from truecast.models.norm import rms_norm
from truecast.models.precision import like, promote
from truecast.models.rows import Rows, by_documents
from truecast.models.taps import PLAIN, Taps

LORA_EPS = 1e-6
"""Epsilon of the two norms inside; the released class leaves them at its default, whatever ``rms_norm_eps`` says."""

_ELEMENTS = 1 << 29
"""So many elements of the queries are worked on at a time."""


@dataclass(frozen=True, slots=True)
class Mla:
    """Weights. H heads; a query or key has ``nope + rope`` channels, none of them rotated."""

    q_a: Linear
    q_a_norm: Tensor
    q_b: Linear
    """``[H (nope + rope), q_lora]``."""
    kv_a: Linear
    """``[kv_lora + rope, hidden]``: the latent, and the part of the key that all heads share."""
    kv_a_norm: Tensor
    kv_b: Linear
    """``[H (nope + v), kv_lora]``: of each head the key's rows, then the value's."""
    gate: Linear
    out: Linear


@dataclass(slots=True)
class MlaCache:
    """What one MLA layer keeps of one sequence: latents, normed, ``[T, kv_lora]``, and shared keys ``[T, rope]``."""

    latent: Tensor | None = None
    key: Tensor | None = None

    def extend(self, latent: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Append, and return all there is."""
        self.latent = latent if self.latent is None else torch.cat([self.latent, latent])
        self.key = key if self.key is None else torch.cat([self.key, key])
        return self.latent, self.key


def attention(
    x: Tensor, w: Mla, config: K3Config, layer: int, rows: Rows, taps: Taps, cache: MlaCache | None
) -> Tensor:
    """Output of the layer. Shapes: ``[N, hidden]`` -> ``[N, hidden]``."""
    joint = w.kv_a(x, taps)
    latent, key = torch.split(joint, [config.kv_lora, config.rope_dim], dim=-1)
    latent = taps.kv(layer, rms_norm(latent, w.kv_a_norm, LORA_EPS))
    key = taps.kv(layer, key)
    run = partial(_documents, w=w, config=config, taps=taps)
    if cache is None:
        limit = max(1, _ELEMENTS // (config.heads * (config.nope_dim + config.rope_dim)))
        attended = by_documents(rows, limit, run, x, latent, key)
    else:
        q = _queries(x, w, config, taps)
        past = 0 if cache.latent is None else cache.latent.shape[0]
        latent, key = cache.extend(latent, key)
        if past and x.shape[0] == 1 and taps is PLAIN:
            attended = _absorbed(q, latent, key, w, config)
        else:
            attended = _expanded(q[None], w.kv_b(latent, taps)[None], key[None], config, past)[0]
        attended = w.out(gated(attended, w.gate(x, taps)), taps)
    return attended


def _documents(rows: Rows, x: Tensor, latent: Tensor, key: Tensor, *, w: Mla, config: K3Config, taps: Taps) -> Tensor:
    q = rows.pad(_queries(x, w, config, taps))
    kv = rows.pad(w.kv_b(latent, taps))  # padded after the product: nothing but tokens enters a quantized matrix
    attended = rows.flat(_expanded(q, kv, rows.pad(key), config, 0))
    return w.out(gated(attended, w.gate(x, taps)), taps)


def _queries(x: Tensor, w: Mla, config: K3Config, taps: Taps) -> Tensor:
    """``[n, hidden]`` -> ``[n, H, nope + rope]``."""
    q = w.q_b(rms_norm(w.q_a(x, taps), w.q_a_norm, LORA_EPS), taps)
    return q.reshape(x.shape[0], config.heads, -1)


def _expanded(q: Tensor, kv: Tensor, key: Tensor, config: K3Config, past: int) -> Tensor:
    """Causal attention with keys and values written out.

    Shapes: q ``[B, n, H, nope + rope]``, kv ``[B, past + n, H (nope + v)]``, key ``[B, past + n, rope]`` ->
    ``[B, n, H v]``.
    """
    batch, tokens, heads, width = q.shape
    length = kv.shape[1]
    k_nope, v = torch.split(kv.reshape(batch, length, heads, -1), [config.nope_dim, config.v_dim], dim=-1)
    k = torch.cat([k_nope, key[:, :, None].expand(-1, -1, heads, -1)], dim=-1)
    if q.is_cuda and config.v_dim < width:
        v = functional.pad(v, (0, width - config.v_dim))  # the fast kernels want one width
    mask = None
    if past and tokens > 1:
        mask = torch.ones(tokens, length, dtype=torch.bool, device=q.device).tril(past)
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, is_causal=past == 0, scale=width**-0.5
    )
    return out[..., : config.v_dim].transpose(1, 2).reshape(batch, tokens, -1)


def _absorbed(q: Tensor, latent: Tensor, key: Tensor, w: Mla, config: K3Config) -> Tensor:
    """Attention of one token over the latents themselves: the key's matrix moves into the query.

    Shapes: q ``[1, H, nope + rope]``, latent ``[T, kv_lora]``, key ``[T, rope]`` -> ``[1, H v]``.
    """
    up = like(w.kv_b.weight(), q).reshape(config.heads, -1, config.kv_lora)
    up_k, up_v = torch.split(up, [config.nope_dim, config.v_dim], dim=1)
    nope, rope = torch.split(q[0], [config.nope_dim, config.rope_dim], dim=-1)
    scores = torch.einsum("hn,hnc->hc", nope, up_k) @ latent.T + rope @ key.T
    shares = like(torch.softmax(promote(scores) * q.shape[-1] ** -0.5, dim=-1), q)
    return torch.einsum("hc,hvc->hv", shares @ latent, up_v).reshape(1, -1)
