"""What the models share: reading layers, embedding and head out of a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from truecast.checkpoint.files import opened
from truecast.checkpoint.header import TensorInfo
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.layouts.recognise import Contents
from truecast.models.embedding import check_tokens, look_up
from truecast.models.hidden import Hidden
from truecast.models.stored import Stored

_EMBEDDING = "embed_tokens.weight"
_PREFIXES = ("language_model.model.", "model.language_model.", "model.", "language_model.", "")


class Parts:
    """Base of the models. ``build_layer`` and ``build_head`` say what a model is made of; the rest is reading."""

    layers: int
    vocab: int
    hidden: int

    def __init__(self, checkpoint: Checkpoint, contents: Contents, device: torch.device, dtype: torch.dtype) -> None:
        self.checkpoint, self.contents, self.device, self.dtype = checkpoint, contents, device, dtype
        found = [prefix for prefix in _PREFIXES if prefix + _EMBEDDING in contents.plain]
        if not found:
            raise InputError(f"has no tensor model.{_EMBEDDING}", where=checkpoint.location)
        self.prefix = found[0]

    def build_layer(self, i: int, stored: Stored) -> Any:
        """Layer ``i`` out of ``stored``."""
        raise NotImplementedError

    def build_head(self, stored: Stored) -> Any:
        """The head out of ``stored``."""
        raise NotImplementedError

    def load_layer(self, i: int) -> Any:
        """See :class:`truecast.models.base.Decoder`."""
        with opened(self.checkpoint.opener) as read:
            return self.build_layer(i, Stored(self.checkpoint, self.contents, self.device, self.dtype, read))

    def load_head(self) -> Any:
        """See :class:`truecast.models.base.Decoder`."""
        with opened(self.checkpoint.opener) as read:
            return self.build_head(Stored(self.checkpoint, self.contents, self.device, self.dtype, read))

    def layer_tensors(self, i: int) -> list[TensorInfo]:
        """See :class:`truecast.models.base.Decoder`. Reads nothing."""
        stored = self._unread()
        self.build_layer(i, stored)
        return stored.used

    def head_tensors(self) -> list[TensorInfo]:
        """See :class:`truecast.models.base.Decoder`. Reads nothing."""
        stored = self._unread()
        self.build_head(stored)
        return stored.used

    def embedding_tensor(self) -> TensorInfo:
        """The stored embedding. Raises: InputError where its shape or dtype is wrong."""
        return self._unread().info(self.prefix + _EMBEDDING, (self.vocab, self.hidden))

    def embed(self, tokens: Tensor) -> Hidden:
        """See :class:`truecast.models.base.Decoder`. Reads what it needs from disk, slab by slab."""
        check_tokens(tokens, self.vocab)
        info = self.embedding_tensor()
        with opened(self.checkpoint.opener) as read:
            return Hidden(look_up(tokens, info, read(info.file)).to(self.device, self.dtype))

    def load_embedding(self) -> Tensor:
        """The whole embedding. Shape: ``[V, hidden]``."""
        with opened(self.checkpoint.opener) as read:
            stored = Stored(self.checkpoint, self.contents, self.device, self.dtype, read)
            return stored.tensor(self.prefix + _EMBEDDING, (self.vocab, self.hidden)).to(self.dtype)

    def head_matrix(self, stored: Stored, tied: bool) -> Tensor:
        """The head's matrix; the embedding where they are one. Shape: ``[V, hidden]``."""
        names = (self.prefix.removesuffix("model.") + "lm_head", "lm_head")
        name = next((n for n in names if stored.has(n)), None)
        if name is None and tied:
            return stored.tensor(self.prefix + _EMBEDDING, (self.vocab, self.hidden)).to(self.dtype)
        weight = stored.linear(name or names[0], self.vocab, self.hidden).weight
        return weight() if stored.reads else torch.empty(0, device="meta")

    def _unread(self) -> Stored:
        return Stored(self.checkpoint, self.contents, self.device, self.dtype, None)
