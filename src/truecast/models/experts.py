"""A mixture's experts, run one after another: each expert's matrices are decoded once, for all its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from truecast.models.fused import suits
from truecast.models.linear import Linear
from truecast.models.precision import like, promote
from truecast.models.taps import Taps


class Bank(Protocol):
    """Where the matrices of the experts come from: a checkpoint, or parameters in training."""

    @property
    def count(self) -> int:
        """How many experts there are."""

    def w1(self, e: int) -> Linear:
        """Gate of expert ``e``: ``[inter, latent]``."""

    def w3(self, e: int) -> Linear:
        """Up: ``[inter, latent]``."""

    def w2(self, e: int) -> Linear:
        """Down: ``[latent, inter]``."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A bank of experts ``(w1, w3, w2)`` each."""

    experts: Sequence[tuple[Linear, Linear, Linear]]

    @property
    def count(self) -> int:
        """See :class:`Bank`."""
        return len(self.experts)

    def w1(self, e: int) -> Linear:
        """See :class:`Bank`."""
        return self.experts[e][0]

    def w3(self, e: int) -> Linear:
        """See :class:`Bank`."""
        return self.experts[e][1]

    def w2(self, e: int) -> Linear:
        """See :class:`Bank`."""
        return self.experts[e][2]


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer."""

    bank: Bank

    def __call__(
        self, z: Tensor, ids: Tensor, shares: Tensor, activation: Callable[[Tensor, Tensor], Tensor], taps: Taps
    ) -> Tensor:
        """Weighted sums over each token's experts, in at least float32.

        Shapes: ``[N, latent]``, experts ``[N, k]`` int64 (a token's are distinct), weights ``[N, k]`` -> ``[N, latent]``.
        The order of the sum is that of the experts' numbers, so the result is the same in each run.
        """
        choices = ids.shape[1]
        order = torch.argsort(ids.reshape(-1), stable=True)
        counts = torch.bincount(ids.reshape(-1), minlength=self.bank.count).tolist()
        tokens, weights = order // choices, shares.reshape(-1)[order]
        sums = torch.zeros_like(promote(z))
        start = 0
        for e, count in enumerate(counts):
            if count == 0:
                continue
            some, share = tokens[start : start + count], weights[start : start + count, None]
            start += count
            x = z.index_select(0, some)
            out = self.bank.w2(e)(activation(self.bank.w1(e)(x, taps), self.bank.w3(e)(x, taps)), taps)
            _add(sums, some, share, out)
        return sums


def _add(sums: Tensor, tokens: Tensor, shares: Tensor, values: Tensor) -> None:
    """``sums[tokens] += shares * values``; no token twice. ``[N, d]``, ``[n]``, ``[n, 1]``, ``[n, d]``."""
    if suits(sums, shares, values):
        from truecast.models.experts_cuda import add_weighted

        add_weighted(sums, tokens, shares[:, 0], values)
    else:
        sums.index_add_(0, tokens, promote(values) * like(shares, sums))
