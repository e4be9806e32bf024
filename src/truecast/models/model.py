"""A model out of a checkpoint: layers, embedding and head are read one at a time, whatever the architecture."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from truecast.checkpoint.files import opened
from truecast.checkpoint.header import TensorInfo
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.layouts.recognise import Contents
from truecast.models.base import Head, Layer, LayerCache
from truecast.models.embedding import EMBEDDING, check_tokens, look_up
from truecast.models.hidden import Hidden
from truecast.models.stored import Read, Stored

_PREFIXES = ("language_model.model.", "model.language_model.", "model.", "language_model.", "")


class Sizes(Protocol):
    """What every kind of model's config says."""

    @property
    def layers(self) -> int:
        """How many layers there are."""

    @property
    def vocab(self) -> int:
        """Rows of the embedding."""

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""


class Architecture(Protocol):
    """What a kind of model is made of. ``prefix`` begins the names of its tensors: ``<prefix>layers.0...``."""

    family: ClassVar[str]

    @property
    def config(self) -> Sizes:
        """What config.json says of it."""

    def layer(self, i: int, prefix: str, stored: Stored) -> Layer:
        """Layer ``i`` out of ``stored``."""

    def head(self, prefix: str, stored: Stored) -> Head:
        """What follows the last layer, out of ``stored``."""

    def new_cache(self) -> list[LayerCache]:
        """Empty caches of one sequence, one a layer."""


class Model:
    """See :class:`truecast.models.base.Decoder`."""

    def __init__(
        self,
        architecture: Architecture,
        checkpoint: Checkpoint,
        contents: Contents,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        config = architecture.config
        self.family, self.layers = architecture.family, config.layers
        self.vocab, self.hidden = config.vocab, config.hidden
        self.checkpoint, self.contents, self.device, self.dtype = checkpoint, contents, device, dtype
        self._architecture = architecture
        found = [prefix for prefix in _PREFIXES if prefix + EMBEDDING in contents.plain]
        if not found:
            raise InputError(f"has no tensor model.{EMBEDDING}", where=checkpoint.location)
        self._prefix = found[0]

    def load_layer(self, i: int) -> Layer:
        """See :class:`truecast.models.base.Decoder`."""
        with opened(self.checkpoint.opener) as read:
            return self._architecture.layer(i, self._prefix, self._stored(read))

    def load_head(self) -> Head:
        """See :class:`truecast.models.base.Decoder`."""
        with opened(self.checkpoint.opener) as read:
            return self._architecture.head(self._prefix, self._stored(read))

    def layer_tensors(self, i: int) -> list[TensorInfo]:
        """See :class:`truecast.models.base.Decoder`. Reads nothing."""
        stored = self._stored(None)
        self._architecture.layer(i, self._prefix, stored)
        return stored.used

    def head_tensors(self) -> list[TensorInfo]:
        """See :class:`truecast.models.base.Decoder`. Reads nothing."""
        stored = self._stored(None)
        self._architecture.head(self._prefix, stored)
        return stored.used

    def embedding_tensor(self) -> TensorInfo:
        """The stored embedding. Raises: InputError where its shape or dtype is wrong."""
        return self._stored(None).info(self._prefix + EMBEDDING, (self.vocab, self.hidden))

    def embed(self, tokens: Tensor) -> Hidden:
        """See :class:`truecast.models.base.Decoder`. Reads what it needs from disk, slab by slab."""
        check_tokens(tokens, self.vocab)
        info = self.embedding_tensor()
        with opened(self.checkpoint.opener) as read:
            return Hidden(look_up(tokens, info, read(info.file)).to(self.device, self.dtype))

    def load_embedding(self) -> Tensor:
        """The whole embedding. Shape: ``[V, hidden]``."""
        with opened(self.checkpoint.opener) as read:
            whole = self._stored(read).tensor(self._prefix + EMBEDDING, (self.vocab, self.hidden))
        return whole.to(self.dtype)

    def new_cache(self) -> list[LayerCache]:
        """See :class:`truecast.models.base.Decoder`."""
        return self._architecture.new_cache()

    def _stored(self, read: Read | None) -> Stored:
        return Stored(self.checkpoint, self.contents, self.device, self.dtype, read)
