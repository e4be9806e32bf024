"""Running a model on tokens: all logits at once, or token by token with caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from truecast.models.base import Decoder
from truecast.models.embedding import check_tokens
from truecast.models.hidden import Hidden
from truecast.models.precision import promote
from truecast.models.rows import Rows
from truecast.models.taps import PLAIN, Taps


@torch.no_grad()
def logits(model: Decoder, tokens: Tensor, taps: Taps = PLAIN) -> Tensor:
    """Logits of one document, each layer loaded, used and let go. Shapes: ``[T]`` int64 -> ``[T, V]``.

    At least float32. Raises: InputError for a token outside the vocabulary.
    """
    hidden, rows = model.embed(tokens), Rows((tokens.shape[0],))
    for i in range(model.layers):
        hidden = model.load_layer(i)(hidden, rows, taps)
    head = model.load_head()
    return promote(functional.linear(head.final(hidden), head.weight.to(hidden.stream.dtype)))


class Resident:
    """A model with all its layers in memory."""

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self.embedding = model.load_embedding()
        self.layers = [model.load_layer(i) for i in range(model.layers)]
        self.head = model.load_head()

    def session(self) -> Session:
        """A new sequence."""
        return Session(self)


class Session:
    """One sequence in the making. Sessions of one :class:`Resident` share its weights."""

    def __init__(self, model: Decoder | Resident) -> None:
        self.resident = model if isinstance(model, Resident) else Resident(model)
        self.caches = self.resident.model.new_cache()
        self.length = 0

    def extend(self, tokens: Sequence[int]) -> Tensor:
        """Append tokens; logits of what follows the last one. Shape: ``[V]``, at least float32.

        Raises: InputError for a token outside the vocabulary, or for no token.
        """
        return self._logits(self._run(tokens)[-1:])[0]

    def logits_all(self, tokens: Sequence[int]) -> Tensor:
        """Append tokens; logits after each of them. Shape: ``[T, V]``, at least float32."""
        return self._logits(self._run(tokens))

    @torch.no_grad()
    def _run(self, tokens: Sequence[int]) -> Tensor:
        """Post-norm states of the new tokens. Shape: ``[T, hidden]``."""
        resident = self.resident
        ids = torch.tensor(list(tokens), dtype=torch.int64)
        check_tokens(ids, resident.model.vocab)
        hidden = Hidden(functional.embedding(ids.to(resident.embedding.device), resident.embedding))
        rows = Rows((len(ids),))
        for layer, cache in zip(resident.layers, self.caches, strict=True):
            hidden = layer(hidden, rows, PLAIN, cache)
        self.length += len(ids)
        return resident.head.final(hidden)

    @torch.no_grad()
    def _logits(self, states: Tensor) -> Tensor:
        return promote(functional.linear(states, self.resident.head.weight.to(states.dtype)))


def sample(scores: Tensor, temperature: float, top_p: float = 1.0, generator: torch.Generator | None = None) -> int:
    """One token from logits ``[V]``. Temperature 0 takes the largest, of equals the first.

    ``top_p`` keeps the likeliest tokens until their probabilities reach it; ``generator`` lives on the CPU.
    """
    if temperature == 0:
        return int(scores.argmax())
    shares = torch.softmax(scores.double().cpu() / temperature, dim=-1)
    ordered, ids = shares.sort(descending=True, stable=True)
    ordered = torch.where(ordered.cumsum(0) - ordered < top_p, ordered, 0)
    return int(ids[torch.multinomial(ordered, 1, generator=generator)])


def generate(
    session: Session,
    prompt: Sequence[int],
    limit: int,
    stop: Sequence[int] = (),
    temperature: float = 0.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Tokens that continue the session after ``prompt``, at most ``limit``; a stop token ends it and is yielded."""
    scores = session.extend(prompt)
    for n in range(limit):
        token = sample(scores, temperature, top_p, generator)
        yield token
        if token in stop or n + 1 == limit:
            return
        scores = session.extend([token])
