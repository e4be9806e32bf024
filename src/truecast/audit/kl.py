"""Exact Kullback-Leibler divergence over the whole vocabulary, without ever holding the logits of it.

For logits z of the reference and y of the candidate, with Z = sum exp(z) and Y = sum exp(y):

    KL(p || q) = sum_v p_v (z_v - y_v) - ln Z + ln Y

Each sum runs over tiles of the vocabulary with a running maximum (Milakov and Gimelshein, arXiv 1805.02867). Logits are
float32 (float64 for float64 states); differences, exponentials and sums are float64. Where both sides are the same
numbers every difference is 0 and both logarithms are equal, so the result is 0 exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Divergence:
    """What is kept of each position. Shapes: ``[n]``; ``floor`` is ``[seeds, n]``. Units: nats."""

    kl: torch.Tensor
    reverse_kl: torch.Tensor
    nll_ref: torch.Tensor
    nll_cand: torch.Tensor
    ref_top_prob: torch.Tensor
    ref_margin: torch.Tensor
    same_top: torch.Tensor
    floor: torch.Tensor


class _Running:
    """Sums over the vocabulary of one side, relative to its running maximum. Shapes: ``[n]`` float64."""

    def __init__(self, like: torch.Tensor) -> None:
        self.top = torch.full(like.shape, -torch.inf, dtype=torch.float64, device=like.device)
        self.total = torch.zeros_like(self.top)
        self.weighted = torch.zeros_like(self.top)
        self.index = torch.zeros(like.shape, dtype=torch.int64, device=like.device)

    def add(self, logits: torch.Tensor, less: torch.Tensor, start: int) -> torch.Tensor:
        """Take in a tile ``[n, v]``; ``less`` are the other side's logits. Returns the weights exp(logit - maximum)."""
        best, where = logits.max(1)
        self.index = torch.where(best > self.top, where + start, self.index)
        top = torch.maximum(self.top, best)
        shrink = torch.exp(self.top - top)
        weights = torch.exp(logits - top[:, None])
        self.total = self.total * shrink + weights.sum(1)
        self.weighted = self.weighted * shrink + (weights * (logits - less)).sum(1)
        self.top = top
        return weights

    @property
    def log_sum(self) -> torch.Tensor:
        """ln sum exp(logit)."""
        return self.top + torch.log(self.total)

    @property
    def mean_difference(self) -> torch.Tensor:
        """Mean of (logit - other logit) under this side's distribution."""
        return self.weighted / self.total


Side = tuple[torch.Tensor, torch.Tensor]
"""What the output matrix consumes, ``[n, hidden]``, and that matrix, ``[V, hidden]``."""


def divergence(
    ref: Side, cand: Side, floor: Sequence[torch.Tensor], labels: torch.Tensor, vocabulary_tile: int
) -> Divergence:
    """Compare the next-token distributions of two sides at ``n`` positions.

    ``floor``: states of noisy references, ``[n, hidden]`` each, which use the reference's matrix. ``labels`` ``[n]``:
    the tokens that follow. Memory: ``n * vocabulary_tile`` numbers of 8 bytes, a few times.
    """
    vocab = ref[1].shape[0]
    p, q = _Running(labels), _Running(labels)
    noisy = [(_Running(labels), torch.zeros_like(p.total)) for _ in floor]
    second = torch.full_like(p.top, -torch.inf)
    label_ref, label_cand = torch.zeros_like(p.top), torch.zeros_like(p.top)
    for start in range(0, vocab, vocabulary_tile):
        end = min(start + vocabulary_tile, vocab)
        z, y = _logits(ref, start, end), _logits(cand, start, end)
        two = torch.cat([p.top[:, None], second[:, None], z.topk(min(2, end - start), 1).values], 1).topk(2, 1).values
        second = two[:, 1]
        before = p.top
        weights = p.add(z, y, start)
        q.add(y, z, start)
        shrink = torch.exp(before - p.top)
        for i, state in enumerate(floor):
            other, weighted = noisy[i]
            x = _logits((state, ref[1]), start, end)
            noisy[i] = (other, weighted * shrink + (weights * (z - x)).sum(1))
            other.add(x, x, start)
        inside = (labels >= start) & (labels < end)
        at = (labels - start).clamp(0, end - start - 1)[:, None]
        label_ref = torch.where(inside, z.gather(1, at)[:, 0], label_ref)
        label_cand = torch.where(inside, y.gather(1, at)[:, 0], label_cand)
    log_z, log_y = p.log_sum, q.log_sum
    return Divergence(
        kl=_not_negative(p.mean_difference - (log_z - log_y)),
        reverse_kl=_not_negative(q.mean_difference - (log_y - log_z)),
        nll_ref=log_z - label_ref,
        nll_cand=log_y - label_cand,
        ref_top_prob=torch.exp(p.top - log_z),
        ref_margin=p.top - second,
        same_top=p.index == q.index,
        floor=torch.stack([_not_negative(w / p.total - (log_z - o.log_sum)) for o, w in noisy])
        if noisy
        else log_z.new_zeros((0, len(labels))),
    )


def _logits(side: Side, start: int, end: int) -> torch.Tensor:
    """Logits of a tile of the vocabulary, computed in float32 or float64. Shape: ``[n, end - start]`` float64."""
    state, weight = side[0], side[1][start:end]
    work = torch.float64 if state.dtype == torch.float64 else torch.float32
    return (state.to(work) @ weight.to(work).T).double()


def _not_negative(kl: torch.Tensor) -> torch.Tensor:
    """A divergence is never negative; a rounding of the sums (some 1e-16 of a logit) may be. NaN stays NaN."""
    return torch.where(kl < 0, torch.zeros_like(kl), kl)
