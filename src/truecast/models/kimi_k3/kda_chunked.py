"""KDA in chunks of 16 tokens: matrix products inside a chunk, one step of the state from chunk to chunk.

With ``g`` the running sum of the log decays in a chunk and ``S`` the state before it, the corrections solve

    (I + A) U = diag(beta) (V - (K e^g) S),   A_ij = beta_i <k_i e^(g_i - g_j), k_j>   for j < i

so that ``U = U0 - W S``, and with ``P_ij = <q_i e^(g_i - g_j), k_j>`` for j <= i

    O = (Q e^g) S + P U,   S' = diag(e^(g_last)) S + (K e^(g_last - g))^T U

All but the products with ``S`` is done for all chunks at once. ``e^(g_i - g_j)`` is split into two factors around the
middle of the chunk: with log decays above -5 each exponent lies within 40 and each product within 80, which float32
holds. Without such a bound the differences are taken pair by pair.

``I + A`` is unit lower triangular. It is inverted by halves, ``[[P, 0], [R, Q]]`` from the inverses of ``P`` and ``Q``. The
series ``(I - A)(I + A^2)(I + A^4)(I + A^8)`` is equal on paper, but where keys repeat its terms reach thousands and
cancel: three digits of float32 are left.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from truecast.models.fused import fused

CHUNK = 16
"""Tokens of a chunk; a power of two."""

MAX_EXPONENT = 80.0
"""Largest sum of log decays in a chunk that is split into two factors."""


def chunked(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, state: Tensor | None, lower_bound: float | None
) -> tuple[Tensor, Tensor]:
    """Outputs and last state, equal to :func:`truecast.models.kimi_k3.kda_recurrent.recurrent` up to rounding.

    ``lower_bound`` is below every log decay; None: there is no bound. Shapes: q, k, a ``[B, T, H, K]``, v ``[B, T, H, V]``,
    beta ``[B, T, H]``, state ``[B, H, K, V]`` or None -> ``[B, T, H, V]``, ``[B, H, K, V]``.
    """
    batch, tokens, heads, width = k.shape
    q, k, v, a, beta = (_split(x) for x in (q, k, v, a, beta[..., None]))
    g = a.cumsum(2)
    last = g[:, :, -1:]
    if lower_bound is not None and -lower_bound * CHUNK <= MAX_EXPONENT:
        k_down, q_down, k_up, k_in, q_in, k_out = _decayed(q, k, g)
        among_keys, read = k_down @ k_up.mT, q_down @ k_up.mT
    else:
        among_keys, read = _pairs(k, k, g), _pairs(q, k, g)
        decay = g.exp()
        k_in, q_in, k_out = k * decay, q * decay, k * (last - g).exp()
    solve = _inverse(among_keys * beta) * beta.mT
    read = torch.tril(read)
    u, w_and_q = solve @ v, torch.cat([solve @ k_in, q_in], dim=2)
    s = v.new_zeros(batch * heads, width, v.shape[-1]) if state is None else state.reshape(-1, *state.shape[2:])
    kept = last.exp().mT
    corrected, direct = [], []
    steps = zip(w_and_q.unbind(), u.unbind(), k_out.unbind(), kept.unbind(), strict=True)  # indices would cost backward
    for step_w_and_q, step_u, step_k, step_kept in steps:
        w_s, q_s = torch.split(torch.bmm(step_w_and_q, s), CHUNK, dim=1)
        corrected.append(step_u - w_s)
        direct.append(q_s)
        s = torch.baddbmm(s * step_kept, step_k.mT, corrected[-1])
    out = torch.stack(direct) + read @ torch.stack(corrected)
    out = out.reshape(-1, batch, heads, CHUNK, v.shape[-1]).permute(1, 0, 3, 2, 4)
    return out.reshape(batch, -1, heads, v.shape[-1])[:, :tokens], s.reshape(batch, heads, width, -1)


def _split(x: Tensor) -> Tensor:
    """Pad to whole chunks with zeros, which change no state. ``[B, T, H, d]`` -> ``[chunks, B H, 16, d]``."""
    batch, tokens, heads, width = x.shape
    x = functional.pad(x, (0, 0, 0, 0, 0, -tokens % CHUNK))
    return x.reshape(batch, -1, CHUNK, heads, width).permute(1, 0, 3, 2, 4).reshape(-1, batch * heads, CHUNK, width)


@fused
def _decayed(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """k and q against the middle of the chunk, k up to it; k and q from its start, k to its end."""
    middle = g[:, :, CHUNK // 2 - 1 : CHUNK // 2]
    down, up = (g - middle).exp(), (middle - g).exp()
    k_down, q_down, k_up = k * down, q * down, k * up
    start, end = middle.exp(), (g[:, :, -1:] - middle).exp()
    return k_down, q_down, k_up, k_down * start, q_down * start, k_up * end


def _pairs(left: Tensor, right: Tensor, g: Tensor) -> Tensor:
    """``<left_i e^(g_i - g_j), right_j>`` for j <= i, diagonal by diagonal; zero above. ``[..., C, K]`` -> ``[..., C, C]``."""
    result = left.new_zeros(*left.shape[:-1], CHUNK)
    for d in range(CHUNK):
        n = CHUNK - d
        decay = (g[..., d:, :] - g[..., :n, :]).exp()
        result = result + torch.diag_embed((left[..., d:, :] * right[..., :n, :] * decay).sum(-1), offset=-d)
    return result


def _inverse(a: Tensor) -> Tensor:
    """``(I + A)^-1``, by halves from blocks of one element up. Only what lies below the diagonal of ``a`` counts."""
    inverse = a.new_ones(*a.shape[:-2], CHUNK, 1, 1)
    size = 1
    while size < CHUNK:
        blocks = a.reshape(*a.shape[:-2], CHUNK // size, size, CHUNK // size, size)
        corner = torch.diagonal(blocks, offset=-1, dim1=-4, dim2=-2)[..., ::2].movedim(-1, -3)
        first, second = inverse[..., ::2, :, :], inverse[..., 1::2, :, :]
        corner = -(second @ corner @ first)
        top = torch.cat([first, torch.zeros_like(first)], dim=-1)
        inverse = torch.cat([top, torch.cat([corner, second], dim=-1)], dim=-2)
        size *= 2
    return inverse[..., 0, :, :]
