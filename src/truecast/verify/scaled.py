"""An INT4 or FP8 matrix as one side stores it: its codes and scales in memory, its values where they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e4m3, int4, packing
from truecast.layouts import LAYOUTS
from truecast.layouts.base import read_view
from truecast.verify.stored import Read, Stored

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
F64 = NDArray[np.float64]

FORMATS = ("w4afp8", "fp8")
GROUP = 128
"""INT4 elements along ``in`` under one scale."""
TILE = 128
"""Rows and columns of an FP8 block."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """Codes and scales. Shapes: codes ``[rows, cols/2]`` (INT4) or ``[rows, cols]`` (FP8) uint8, scale bytes by rows."""

    stored: Stored
    codes: U8
    scale: U8

    @property
    def offset(self) -> int:
        """What turns a byte of two INT4 codes into two's complement by exclusive or."""
        return 0x88 if LAYOUTS[self.stored.layout].DIALECT == "compressed-tensors" else 0

    @cached_property
    def factors(self) -> NDArray[np.float32]:
        """The scales as float32, which holds BF16 and F16 exactly. Shape: that of the stored tensor."""
        return as_float32(self.scale, self.stored.parts["scale"].tensor.dtype)

    @property
    def factor_bits(self) -> U32:
        """Bit patterns of the scales as float32."""
        return self.factors.view(np.uint32)

    @property
    def legal(self) -> bool:
        """Is every scale finite and not zero, and no FP8 code NaN?"""
        scales = bool((np.isfinite(self.factors) & (self.factors != 0)).all())
        return scales and (self.stored.format != "fp8" or not bool(e4m3.IS_NAN[self.codes].any()))

    def integers(self, first: int, last: int) -> NDArray[np.int8]:
        """INT4 codes of some rows. Shape: ``[last - first, cols]``, -8..7."""
        return int4.decode_twos_complement(packing.unpack_nibbles(self.codes[first:last] ^ np.uint8(self.offset)))

    def expanded(self, first: int, last: int) -> F64:
        """The scale of each element of some rows. Shape: ``[last - first, cols]``, or one that broadcasts to it."""
        factors = self.factors.astype(np.float64)
        if self.stored.format == "w4afp8":
            return np.repeat(factors[first:last], GROUP, axis=1)
        if LAYOUTS[self.stored.layout].DIALECT == "compressed-tensors":
            return factors[first:last]
        tiles = factors[np.arange(first, last) // TILE]
        return np.repeat(tiles, TILE, axis=1)[:, : self.stored.cols]

    def values(self, first: int, last: int) -> F64:
        """Values of some rows: exact, since codes have at most 4 bits and scales 24. Shape: ``[last - first, cols]``."""
        if self.stored.format == "w4afp8":
            codes = self.integers(first, last).astype(np.float64)
        else:
            codes = e4m3.decode(self.codes[first:last]).astype(np.float64)
        return np.asarray(codes * self.expanded(first, last))


def load_scaled(stored: Stored, read: Read) -> Scaled:
    """Read codes and scales."""
    codes, scale = (read_view(v, read(v.tensor.file)) for v in (stored.parts["codes"], stored.parts["scale"]))
    return Scaled(stored, codes, scale)


def load_shape(stored: Stored, read: Read) -> tuple[int, ...] | None:
    """The stored shape of the matrix, None if the side has none."""
    view = stored.parts.get("shape")
    if view is None:
        return None
    data = read_view(view, read(view.tensor.file)).reshape(-1)
    return tuple(int(n) for n in data.view("<i8" if view.tensor.dtype == "I64" else "<i4"))


def load_multiplier(stored: Stored, role: str, read: Read) -> np.float32 | None:
    """A scalar part of any float dtype, None if the side has none."""
    view = stored.parts.get(role)
    if view is None:
        return None
    return np.float32(as_float32(read_view(view, read(view.tensor.file)), view.tensor.dtype)[0, 0])


def as_float32(data: U8, dtype: str) -> NDArray[np.float32]:
    """Stored BF16, F16 or F32 as float32, which holds them all exactly. Shapes: ``[n, bytes]`` -> ``[n, k]``."""
    if dtype == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(data.view({"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32))


def fixed(array: NDArray[Any]) -> NDArray[Any]:
    """The same array, read-only: bytes from a file are so, and compiled loops are made for one kind of array."""
    view = array.view()
    view.flags.writeable = False
    return view
