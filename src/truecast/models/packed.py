"""A quantized matrix kept packed, and decoded when it is used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from truecast.models.decode import FOUR_BITS, decode
from truecast.models.fused import suits
from truecast.models.taps import Taps


@dataclass(frozen=True, slots=True)
class Packed:
    """One quantized matrix ``[rows, cols]`` as stored, whatever the layout; parts lie on the model's device.

    ``codes`` are bytes ``[rows, bytes a row]``, INT4 in two's complement. ``scale`` is bytes (E8M0, E4M3) or floats, one
    a group or tile. ``global_scale`` multiplies, or divides if ``divides``. ``dtype`` is that of the decoded matrix.
    """

    name: str
    format: str
    rows: int
    cols: int
    codes: Tensor
    scale: Tensor
    tile: tuple[int, int]
    dtype: torch.dtype
    global_scale: float | None = None
    divides: bool = False
    input_scale: Tensor | None = None

    def __call__(self, x: Tensor, taps: Taps) -> Tensor:
        """See :class:`truecast.models.linear.Linear`."""
        return functional.linear(taps.input(self.name, x, self.input_scale), self.weight())

    def weight(self) -> Tensor:
        """See :class:`truecast.models.linear.Linear`."""
        if self.format in FOUR_BITS and self.dtype == torch.bfloat16 and suits(self.codes, self.scale):
            from truecast.models.decode_cuda import decode_into

            out = torch.empty(self.rows, self.cols, dtype=self.dtype, device=self.codes.device)
            factor = 1.0 if self.global_scale is None else self.global_scale
            decode_into(out, self.format, self.codes, self.scale, factor, self.divides)
            return out
        return decode(self.format, self.codes, self.scale, self.tile, self.global_scale, self.divides, self.dtype)

    @property
    def nbytes(self) -> int:
        """See :class:`truecast.models.linear.Linear`."""
        return self.codes.nbytes + self.scale.nbytes
