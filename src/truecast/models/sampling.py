"""From logits to the next token: temperature, nucleus, a seed; and the log probabilities that were at hand."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from truecast.errors import InputError

F64 = NDArray[np.float64]
LEAST = -9999.0
"""Stands for the log of zero, which JSON cannot hold; as in vLLM."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with its natural log probability (of the model's own distribution, at temperature 1).

    ``logprob`` is None for the first token of a sequence, which nothing predicts. ``top``: the most probable
    ``(token, logprob)``, best first.
    """

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws tokens. The same ``seed`` and ``stream`` (number of the sequence) draw the same from the same logits."""

    def __init__(self, temperature: float = 1.0, top_p: float = 1.0, seed: int | None = None, stream: int = 0) -> None:
        self.temperature = temperature
        self.top_p = top_p
        entropy = secrets.randbits(64) if seed is None else seed & (1 << 64) - 1
        self._random = np.random.default_rng([entropy, stream])

    def pick(self, logits: Tensor) -> int:
        """Next token from logits ``[V]``: the largest at temperature 0, else drawn from the nucleus.

        Raises: InputError where the logits are no numbers.
        """
        values = _numbers(logits)
        if self.temperature == 0:
            return int(values.argmax())
        with np.errstate(over="ignore"):  # near temperature 0 all but the largest go to minus infinity
            shares = np.exp(log_softmax((values - values.max()) / self.temperature))
        draw = self._random.random()
        if self.top_p >= 1:
            return _at(shares, draw)
        order = np.argsort(-shares, kind="stable")
        cumulative = np.cumsum(shares[order])
        kept = order[: int(np.searchsorted(cumulative, self.top_p)) + 1]
        return int(kept[_at(shares[kept], draw)])


def scored(logits: Tensor, token: int, top: int) -> Scored:
    """``token`` against logits ``[V]``, with the ``top`` most probable tokens, ties by id.

    Raises: InputError where the logits are no numbers. Log probabilities end at :data:`LEAST`.
    """
    logprobs = np.maximum(log_softmax(_numbers(logits)), LEAST)
    best: NDArray[np.intp] = np.empty(0, np.intp)
    if top:
        best = np.argpartition(-logprobs, min(top, len(logprobs)) - 1)[:top]
        best = best[np.lexsort((best, -logprobs[best]))]
    return Scored(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best))


def log_softmax(values: F64) -> F64:
    """Natural log of softmax, float64."""
    shifted = values - values.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float64)


def _at(shares: F64, draw: float) -> int:
    """Index at which the running sum of ``shares`` passes ``draw`` of their total; never one whose share is 0."""
    cumulative = np.cumsum(shares)
    return int(np.searchsorted(cumulative, draw * cumulative[-1], side="right").clip(max=np.flatnonzero(shares)[-1]))


def _numbers(logits: Tensor) -> F64:
    values = np.asarray(logits.detach().cpu().double().numpy(), np.float64)
    if not values.max() < np.inf:  # NaN too; minus infinity is a token that cannot come
        raise InputError("the model's logits are no numbers", fix="run truecast check: the checkpoint may be faulty")
    return values
