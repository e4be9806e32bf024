"""Codes and scales -> values, in PyTorch, on whatever device they lie.

Shares nothing with the casts. Two four-bit codes make a byte, so a table of 256 pairs gives two values at a time.

Exact in float64. In float32 a product is rounded once at most: E2M1 times a power of two, E2M1 times E4M3 and INT4 times
a BF16 scale are exact. BF16 is float32 rounded again, except where it holds the values anyway: E2M1 under powers of two
and under E4M3 scales with a global scale that is a power of two.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_INT4 = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0)
FOUR_BITS = ("mxfp4", "nvfp4", "w4afp8")
"""Formats of two codes a byte."""

_PAIR = {torch.bfloat16: torch.int32, torch.float32: torch.int64}
"""An integer as wide as two values: they are fetched as one."""


def decode(
    kind: str,
    codes: Tensor,
    scale: Tensor,
    tile: tuple[int, int],
    global_scale: float | None,
    divides: bool,
    dtype: torch.dtype,
) -> Tensor:
    """The matrix ``[rows, cols]`` in ``dtype``, which is float64, float32 or bfloat16.

    ``kind`` is ``mxfp4``, ``nvfp4``, ``w4afp8`` or ``fp8``. Shapes: codes ``[rows, bytes a row]`` uint8, scale
    ``[ceil(rows / tile), ceil(cols / tile)]``; uint8 in the first two formats, floating in the others.
    """
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    if kind == "mxfp4":
        values = _pairs(codes, _E2M1, dtype)
        return _in_groups(values, _powers(dtype, codes.device)[scale.int()])
    if kind == "nvfp4":
        assert global_scale is not None
        block = scale.view(torch.float8_e4m3fn)
        if math.frexp(global_scale)[0] == 0.5:
            factor = 1 / global_scale if divides else global_scale
            return _in_groups(_pairs(codes, _E2M1, dtype), (block.to(wide) * factor).to(dtype))
        values = _in_groups(_pairs(codes, _E2M1, wide), block.to(wide))
        return (values.div_(global_scale) if divides else values.mul_(global_scale)).to(dtype)
    if kind == "w4afp8":
        return _in_groups(_pairs(codes, _INT4, wide), scale.to(wide)).to(dtype)
    values = codes.view(torch.float8_e4m3fn).to(wide)
    for axis, size in enumerate(tile):
        if size not in (0, 1):
            scale = scale.repeat_interleave(size, dim=axis).narrow(axis, 0, values.shape[axis])
    return values.mul_(scale.to(wide)).to(dtype)


def _in_groups(values: Tensor, scale: Tensor) -> Tensor:
    """Multiply each group of a row, in place. Shapes: ``[rows, cols]``, ``[rows, groups]``."""
    values.view(*scale.shape, -1).mul_(scale[..., None])
    return values


def _pairs(codes: Tensor, values: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """Values of packed codes, the low nibble first. Shapes: ``[rows, n]`` uint8 -> ``[rows, 2 n]``."""
    table = _table(values, dtype, codes.device)
    if dtype in _PAIR:
        table = table.view(_PAIR[dtype])[:, 0]
    fetched = table.index_select(0, codes.reshape(-1).int())
    return fetched.view(dtype).reshape(codes.shape[0], -1)


@lru_cache(maxsize=16)
def _table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Both values of each byte. Shape: ``[256, 2]``."""
    return torch.tensor([(values[b & 15], values[b >> 4]) for b in range(256)], dtype=dtype, device=device)


@lru_cache(maxsize=8)
def _powers(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Value of each E8M0 byte; NaN for 255. Shape: ``[256]``."""
    return torch.tensor([2.0 ** (b - 127) for b in range(255)] + [math.nan], dtype=dtype, device=device)
