"""The model being served, and what a request may ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as short

from truecast.models.kimi_k3.tokenizer import K3Tokenizer
from truecast.models.text import Tokenizer
from truecast.serve.reference.engine import Engine
from truecast.serve.reference.errors import ApiError


@dataclass(frozen=True, slots=True)
class Served:
    """One model. ``names``: what requests may call it, its own name first. ``context`` in tokens."""

    names: tuple[str, ...]
    engine: Engine
    tokenizer: Tokenizer
    vocab: int
    context: int
    stops: frozenset[int]
    created: int = 0

    @property
    def chat_tokenizer(self) -> K3Tokenizer:
        """The tokenizer of a chat format. Raises: ApiError 400 if the checkpoint has none that is known here."""
        if isinstance(self.tokenizer, K3Tokenizer):
            return self.tokenizer
        raise ApiError(400, "this checkpoint has no chat format that is known here: use /v1/completions")

    def require_name(self, name: str) -> None:
        """Raises: ApiError 404 if ``name`` is another model's."""
        if name not in self.names:
            raise ApiError(
                404,
                f"The model {short(name)} does not exist; this server has {self.names[0]!r}",
                param="model",
                code="model_not_found",
            )

    def room(self, prompt: Sequence[int], wanted: int | None) -> int:
        """How many tokens to make after ``prompt``; by default all that the context has room for.

        Raises: ApiError 400 if it has no room for them, or the prompt is empty or holds an id that is none.
        """
        if not prompt:
            raise ApiError(400, "the prompt is empty", param="prompt")
        if max(prompt) >= self.vocab or min(prompt) < 0:
            raise ApiError(400, f"the prompt holds ids outside the vocabulary of {self.vocab}", param="prompt")
        left = self.context - len(prompt)
        if left < (1 if wanted is None else wanted):
            asked = "" if wanted is None else f" and {wanted} to be made"
            raise ApiError(
                400,
                f"This model's maximum context length is {self.context} tokens; {len(prompt)} in the prompt{asked}"
                " are more",
                code="context_length_exceeded",
            )
        return left if wanted is None else wanted
