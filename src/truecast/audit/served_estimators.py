"""The divergence of two next-token distributions of which only the most probable tokens are known.

A server gives log-probabilities of its ``k`` most probable tokens and of the token that follows in the text, x. Let A be
the tokens whose probability is known on both sides because they are among the most probable, never because they are x;
P = 1 - p(A) and Q = 1 - q(A) are the tails. With K = sum over A of p ln(p / q):

    log ratio   ln p(x) / q(x)
    estimate    K + [x not in A] ln p(x) / q(x)
    lower       K + P ln(P / Q)
    upper       lower + P c tanh(c / 2)

- **Log ratio** and **estimate** are unbiased for KL(p || q) where x was drawn from p: the first as it stands, the second
  because only the tail is left to chance, sum over the tail of p ln(p / q) (Rao and Blackwell). A must not depend on x.
- **Lower** never exceeds KL(p || q), whatever the text: lumping the tail into one outcome cannot make two distributions
  easier to tell apart (data-processing inequality).
- **Upper** is never below it, if for each token v of the tail ln(p_v / q_v) lies within ``c`` of ln(P / Q). For KL is
  ``lower`` + P KL(p' || q') with p', q' the distributions within the tail (chain rule), and two distributions whose log
  ratio lies within [-c, c] are at most c tanh(c / 2) apart: ln is concave and the mean of q'/p' is 1, so the worst p'
  has the two end values only. Without such a ``c`` there is no upper bound: q may give a tail token any small probability.

Log-probabilities come as float32, and P and Q as 1 less a sum: they are known to ``ROUNDING`` only, within which ``lower``
takes the values that make it smallest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

ROUNDING = 2e-6
"""How far a sum of a server's float32 probabilities may be from what it should be."""

SEEN_TAIL = 1e-3
"""A tail is looked into where it holds at least this much: below, its size is too uncertain."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Of each position, ``[n]`` each, in nats. ``tail``: P. ``inside``: is x in A? ``spread``: how far ln p(x)/q(x) is
    from ln P/Q, NaN where x is in A or P below ``SEEN_TAIL``."""

    log_ratio: F64
    estimate: F64
    lower: F64
    tail: F64
    inside: NDArray[np.bool_]
    spread: F64


def estimates(p: F64, q: F64, p_next: F64, q_next: F64, inside: NDArray[np.bool_]) -> Estimates:
    """From log-probabilities. ``p`` and ``q`` ``[n, k]`` of the tokens of A, minus infinity on both sides where a
    position has fewer; ``p_next``, ``q_next`` ``[n]`` of the token that follows, and whether that is in A."""
    shares = np.exp(p)
    with np.errstate(invalid="ignore"):
        known = np.where(shares > 0, shares * (p - q), 0.0).sum(1)
    tail = np.maximum(1 - shares.sum(1), 0.0)
    other = np.maximum(1 - np.exp(q).sum(1), 0.0)
    ratio = p_next - q_next
    spread = np.full(len(ratio), np.nan)
    looked = ~inside & (tail >= SEEN_TAIL) & (other > 0)
    spread[looked] = np.abs(ratio[looked] - np.log(tail[looked] / other[looked]))
    return Estimates(
        log_ratio=ratio,
        estimate=known + np.where(inside, 0.0, ratio),
        lower=np.maximum(known + _tail_term(tail, other), 0.0),
        tail=tail,
        inside=inside,
        spread=spread,
    )


def upper(lower: F64, tail: F64, spread: float) -> F64:
    """Upper bounds ``[n]`` where the log ratio of every token of the tail lies within ``spread`` of the tail's own."""
    bound: F64 = lower + np.minimum(tail + ROUNDING, 1.0) * spread * np.tanh(spread / 2)
    return bound


def _tail_term(tail: F64, other: F64) -> F64:
    """P ln(P / Q), the smallest that P and Q within ``ROUNDING`` allow: least at P = Q / e, and falling in Q."""
    most = np.minimum(other + ROUNDING, 1.0)
    least = np.clip(most / np.e, np.maximum(tail - ROUNDING, 0.0), np.minimum(tail + ROUNDING, 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(least > 0, least * np.log(least / most), 0.0)
