"""A linear map, whether its matrix is plain, packed in a checkpoint, or made anew at each step of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from truecast.models.precision import like
from truecast.models.taps import Taps


class Linear(Protocol):
    """``y = W x`` without bias."""

    def __call__(self, x: Tensor, taps: Taps) -> Tensor:
        """Shapes: ``[n, in]`` -> ``[n, out]``."""

    def weight(self) -> Tensor:
        """``[out, in]``, decoded where it is packed."""

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A plain matrix ``[out, in]``; may be a parameter in training."""

    matrix: Tensor

    def __call__(self, x: Tensor, taps: Taps) -> Tensor:
        """See :class:`Linear`."""
        return functional.linear(x, like(self.matrix, x))

    def weight(self) -> Tensor:
        """See :class:`Linear`."""
        return self.matrix

    @property
    def nbytes(self) -> int:
        """See :class:`Linear`."""
        return self.matrix.nbytes
