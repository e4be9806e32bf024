"""KDA on a CUDA device in one Triton kernel: from the projections to the attention's output, nothing written between.

The formulas are those of :mod:`truecast.models.kimi_k3.kda_chunked`, with the short convolutions, SiLU, the unit vectors
and the gates of :mod:`truecast.models.kimi_k3.kda` in front. A program has one head of one document and a slice of the
value's channels; it walks through the chunks with its slice of the state in registers. With ``S`` known, a chunk needs no
``W``: ``U = (I + A)^-1 diag(beta) (V - (K e^g) S)``.

All is float32. ``PRECISION`` says how the matrix products of float32 are done; ``tf32x3`` splits each factor in two and
leaves out only the product of the two small halves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from truecast.models.kimi_k3.kda_chunked import CHUNK

PRECISION = "tf32x3"
_VALUES = 64
"""Channels of the value a program has."""
_WARPS = 4


@triton.jit
def _convolved(x, tail, weight, t, column, tokens, stride, TAPS: tl.constexpr, TAIL: tl.constexpr):
    """Causal convolution over tokens ``t``, then SiLU; ``x`` and ``tail`` point at the document's first token."""
    y = tl.zeros([t.shape[0], column.shape[0]], tl.float32)
    for tap in tl.static_range(TAPS):
        at = t + (tap - TAPS + 1)
        here = (at >= 0) & (at < tokens)
        place = at[:, None].to(tl.int64) * stride + column[None, :]
        value = tl.load(x + place, mask=here[:, None], other=0.0).to(tl.float32)
        if TAIL:
            earlier = (at[:, None] + (TAPS - 1)).to(tl.int64) * stride + column[None, :]
            value += tl.load(tail + earlier, mask=(at < 0)[:, None], other=0.0).to(tl.float32)
        y += value * tl.load(weight + column * TAPS + tap).to(tl.float32)[None, :]
    return y * tl.sigmoid(y)


@triton.jit
def _inverse(a, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """``(I + a)^-1`` of a strictly lower triangle, by halves from blocks of one element up."""
    i = tl.arange(0, CHUNK)[:, None]
    j = tl.arange(0, CHUNK)[None, :]
    corner = ((i & 1) == 1) & (j == i - 1)
    inverse = tl.where(i == j, 1.0, 0.0) - tl.where(corner, a, 0.0)
    for step in tl.static_range(1, 4):
        corner = (((i >> step) & 1) == 1) & ((j >> step) == (i >> step) - 1)
        rest = tl.dot(tl.where(corner, a, 0.0), inverse, input_precision=PRECISION)
        inverse -= tl.dot(inverse, rest, input_precision=PRECISION)
    return inverse


@triton.jit
def _kernel(
    q_in,
    k_in,
    v_in,
    q_tail,
    k_tail,
    v_tail,
    q_taps,
    k_taps,
    v_taps,
    raw,
    logits,
    a_log,
    dt_bias,
    before,
    after,
    out,
    tokens,
    heads,
    lower_bound,
    query_scale,
    eps,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    CHUNK: tl.constexpr,
    TAPS: tl.constexpr,
    TAIL: tl.constexpr,
    STATE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tl.static_assert(CHUNK == 16)
    SLICES: tl.constexpr = WIDTH // VALUES
    line = (tl.program_id(0) // SLICES).to(tl.int64)
    document = line // heads
    head = line % heads
    stride = heads * WIDTH
    row = tl.arange(0, CHUNK)
    key = tl.arange(0, WIDTH)
    value = (tl.program_id(0) % SLICES) * VALUES + tl.arange(0, VALUES)
    key_column = head * WIDTH + key
    value_column = head * WIDTH + value
    start = document * tokens * stride
    tail = document * (TAPS - 1) * stride
    place = line * WIDTH * WIDTH + key[:, None] * WIDTH + value[None, :]
    rate = tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + key_column).to(tl.float32)
    below = row[:, None] > row[None, :]
    upto = row[:, None] >= row[None, :]
    if STATE:
        s = tl.load(before + place)
    else:
        s = tl.zeros([WIDTH, VALUES], tl.float32)
    for first in range(0, tokens, CHUNK):
        t = first + row
        real = t < tokens
        q = _convolved(q_in + start, q_tail + tail, q_taps, t, key_column, tokens, stride, TAPS, TAIL)
        k = _convolved(k_in + start, k_tail + tail, k_taps, t, key_column, tokens, stride, TAPS, TAIL)
        v = _convolved(v_in + start, v_tail + tail, v_taps, t, value_column, tokens, stride, TAPS, TAIL)
        q *= (query_scale * tl.rsqrt(tl.sum(q * q, 1) + eps))[:, None]
        k *= tl.rsqrt(tl.sum(k * k, 1) + eps)[:, None]
        decay = tl.load(
            raw + start + t[:, None].to(tl.int64) * stride + key_column[None, :], mask=real[:, None], other=0.0
        )
        a = lower_bound * tl.sigmoid(rate * (decay.to(tl.float32) + bias[None, :]))
        a = tl.where(real[:, None], a, 0.0)
        beta = tl.load(logits + (document * tokens + t) * heads + head, mask=real, other=0.0)
        beta = tl.where(real, tl.sigmoid(beta.to(tl.float32)), 0.0)
        g = tl.cumsum(a, 0)
        last = tl.sum(a, 0)
        middle = tl.sum(tl.where(row[:, None] < CHUNK // 2, a, 0.0), 0)
        down = tl.exp(g - middle[None, :])
        up = k * tl.exp(middle[None, :] - g)
        q *= down
        k *= down
        among = tl.dot(k, tl.trans(up), input_precision=PRECISION)
        read = tl.dot(q, tl.trans(up), input_precision=PRECISION)
        solve = _inverse(tl.where(below, among, 0.0) * beta[:, None], CHUNK, PRECISION) * beta[None, :]
        into = tl.exp(middle)[None, :]
        u = tl.dot(solve, v - tl.dot(k * into, s, input_precision=PRECISION), input_precision=PRECISION)
        o = tl.dot(q * into, s, input_precision=PRECISION)
        o += tl.dot(tl.where(upto, read, 0.0), u, input_precision=PRECISION)
        tl.store(out + start + t[:, None].to(tl.int64) * stride + value_column[None, :], o, mask=real[:, None])
        kept = up * tl.exp(last - middle)[None, :]
        s = s * tl.exp(last)[:, None] + tl.dot(tl.trans(kept), u, input_precision=PRECISION)
    tl.store(after + place, s)


def attend(
    projected: list[Tensor],
    convolutions: tuple[Tensor, ...],
    tails: list[Tensor],
    raw: Tensor,
    logits: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor | None,
    lower_bound: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, T, H, V]`` and last state ``[B, H, K, V]``, float32; K equals V and is a power of two, at least 16.

    ``projected`` are q, k and v before the convolutions, ``[B, T, H K]``; ``convolutions`` ``[H K, taps]`` each; ``tails``
    the projections before the first token, ``[B, taps - 1, H K]`` each, or none for zeros; ``raw`` ``[B, T, H K]`` and
    ``logits`` ``[B, T, H]`` give decay and beta. ``lower_bound`` times 16 stays within e^80. ``eps`` is that of the unit
    vectors.
    """
    q, k, v = (x.contiguous() for x in projected)
    batch, tokens, inner = q.shape
    heads = logits.shape[-1]
    width = inner // heads
    before = [x.contiguous() for x in tails] or [q, k, v]
    weights = [x.contiguous() for x in convolutions]
    out = torch.empty(batch, tokens, heads, width, dtype=torch.float32, device=q.device)
    after = torch.empty(batch, heads, width, width, dtype=torch.float32, device=q.device)
    values = min(_VALUES, width)
    with torch.cuda.device_of(out):
        _kernel[(width // values * batch * heads,)](
            q,
            k,
            v,
            *before,
            *weights,
            raw.contiguous(),
            logits.contiguous(),
            a_log,
            dt_bias,
            after if state is None else state.contiguous(),
            after,
            out,
            tokens,
            heads,
            lower_bound,
            width**-0.5,
            eps,
            WIDTH=width,
            VALUES=values,
            CHUNK=CHUNK,
            TAPS=weights[0].shape[1],
            TAIL=bool(tails),
            STATE=state is not None,
            PRECISION=PRECISION,
            num_warps=_WARPS,
            num_stages=1,
        )
    return out, after
