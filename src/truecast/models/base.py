"""What every reference model offers: layers loaded one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from truecast.checkpoint.header import TensorInfo
from truecast.checkpoint.source import Checkpoint
from truecast.models.hidden import Hidden
from truecast.models.rows import Rows
from truecast.models.taps import PLAIN, Taps

LayerCache = Any
"""What one layer keeps of one sequence between steps; made by ``new_cache``, changed by the layer."""


class Layer(Protocol):
    """One decoder layer in memory."""

    @property
    def nbytes(self) -> int:
        """What its weights take in memory."""

    def __call__(self, hidden: Hidden, rows: Rows, taps: Taps = PLAIN, cache: LayerCache | None = None) -> Hidden:
        """Push all rows through. With ``cache`` there is one document, which goes on where the cache ends."""


class Head(Protocol):
    """What follows the last layer."""

    @property
    def weight(self) -> Tensor:
        """``[V, hidden]``."""

    def final(self, hidden: Hidden) -> Tensor:
        """What the head's matrix is applied to, normed. Shape: ``[N, hidden]``."""


class Decoder(Protocol):
    """A model whose layers are loaded one at a time."""

    family: str
    layers: int
    vocab: int
    hidden: int
    checkpoint: Checkpoint

    def embed(self, tokens: Tensor) -> Hidden:
        """Embedding of tokens ``[N]`` int64. Raises: InputError for a token outside the vocabulary."""

    def embedding_tensor(self) -> TensorInfo:
        """The stored embedding, of which ``embed`` reads what it needs."""

    def load_embedding(self) -> Tensor:
        """The whole embedding ``[V, hidden]``, for those who look tokens up again and again."""

    def load_layer(self, i: int) -> Layer:
        """Read layer ``i`` (0-based). Raises: InputError naming tensor and file."""

    def layer_tensors(self, i: int) -> Sequence[TensorInfo]:
        """Exactly the stored tensors that ``load_layer(i)`` reads."""

    def load_head(self) -> Head:
        """Read the last norm and the head. Raises: InputError naming tensor and file."""

    def head_tensors(self) -> Sequence[TensorInfo]:
        """Exactly the stored tensors that ``load_head`` reads."""

    def new_cache(self) -> list[LayerCache]:
        """Empty caches of one sequence, one a layer."""
