"""KDA, step by step: what it means. See :mod:`truecast.models.kimi_k3.kda_chunked` for what it costs less as.

The state of a head is a matrix ``S`` ``[K, V]``. At each step it decays by channel, is corrected towards the value under
the key (the delta rule), and is read with the query:

    S <- diag(exp(a)) S;   u = beta (v - S^T k);   S <- S + k u^T;   o = S^T q

Source: Kimi Linear, arXiv:2510.26692, section 3; fla-org/flash-linear-attention bc3b101, fla/ops/kda/naive.py.
"""

from __future__ import annotations

import torch
from torch import Tensor


def recurrent(q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Outputs and last state.

    Shapes: q, k, log decay a ``[B, T, H, K]``, v ``[B, T, H, V]``, beta ``[B, T, H]``, state ``[B, H, K, V]`` or None for
    zeros -> ``[B, T, H, V]``, ``[B, H, K, V]``.
    """
    batch, _, heads, width = k.shape
    s = v.new_zeros(batch, heads, width, v.shape[-1]) if state is None else state
    outputs = []
    for t in range(q.shape[1]):
        s = s * a[:, t].exp()[..., None]
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", s, k[:, t]))
        s = s + k[:, t, :, :, None] * u[:, :, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", s, q[:, t]))
    return torch.stack(outputs, dim=1), s
