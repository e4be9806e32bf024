"""Four-bit codes and scales -> bfloat16 on a CUDA device: one Triton kernel, a byte in and two values out.

The values are those of :mod:`truecast.models.decode`, bit for bit. Each is computed in float32, where products of a code
and a scale are exact, and rounded to nearest even by integer arithmetic. Two neighbours leave as one 32-bit word.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

KINDS = {"mxfp4": 0, "nvfp4": 1, "w4afp8": 2}
_BYTES = 1024
_WARPS = 4


@triton.jit
def _e2m1(code):
    """Value of a four-bit float as float32: sign, two bits of exponent, one of mantissa."""
    exponent = (code >> 1) & 3
    mantissa = code & 1
    normal = ((exponent + 126) << 23) | (mantissa << 22)
    magnitude = tl.where(exponent > 0, normal, mantissa * 0x3F000000)
    return (magnitude | ((code >> 3) << 31)).to(tl.float32, bitcast=True)


@triton.jit
def _e8m0(byte):
    """Power of two as float32: 2^-127, which is subnormal, for 0 and NaN for 255."""
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    return tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _e4m3(byte):
    """Value of an eight-bit float as float32; NaN for 127 and 255."""
    exponent = (byte >> 3) & 15
    mantissa = byte & 7
    normal = (((exponent + 120) << 23) | (mantissa << 20)).to(tl.float32, bitcast=True)
    value = tl.where(exponent > 0, normal, mantissa.to(tl.float32) * 0.001953125)
    value = tl.where((byte & 127) == 127, float("nan"), value)
    return (value.to(tl.int32, bitcast=True) | ((byte >> 7) << 31)).to(tl.float32, bitcast=True)


@triton.jit
def _value(code, scale, factor, KIND: tl.constexpr, DIVIDES: tl.constexpr):
    """Bits of the bfloat16 next to code times scale."""
    if KIND == 2:
        value = (code - ((code >> 3) << 4)).to(tl.float32) * scale
    else:
        value = _e2m1(code) * scale
    if KIND == 1:
        value = tl.math.div_rn(value, factor) if DIVIDES else value * factor
    bits = value.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded) & 0xFFFF


@triton.jit
def _kernel(
    codes,
    scales,
    out,
    factor,
    total,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDES: tl.constexpr,
    BYTES: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    inside = n < total
    byte = tl.load(codes + n, mask=inside, other=0).to(tl.int32)
    stored = tl.load(scales + n // GROUP, mask=inside, other=0)
    if KIND == 0:
        scale = _e8m0(stored.to(tl.int32))
    elif KIND == 1:
        scale = _e4m3(stored.to(tl.int32))
    else:
        scale = stored.to(tl.float32)
    low = _value(byte & 15, scale, factor, KIND, DIVIDES)
    high = _value(byte >> 4, scale, factor, KIND, DIVIDES)
    tl.store(out + n, low | (high << 16), mask=inside)


def decode_into(out: Tensor, kind: str, codes: Tensor, scale: Tensor, factor: float, divides: bool) -> None:
    """Write the matrix into ``out``, bfloat16 ``[rows, cols]``, contiguous.

    Shapes: codes ``[rows, cols / 2]`` uint8, scale ``[rows, groups]`` as stored; both contiguous.
    """
    assert out.is_contiguous() and codes.is_contiguous() and scale.is_contiguous()
    assert out.dtype == torch.bfloat16 and out.numel() == 2 * codes.numel() and codes.numel() % scale.numel() == 0
    total = codes.numel()
    with torch.cuda.device_of(out):
        _kernel[(triton.cdiv(total, _BYTES),)](
            codes,
            scale,
            out.view(torch.int32),
            factor,
            total,
            GROUP=total // scale.numel(),
            KIND=KINDS[kind],
            DIVIDES=divides,
            BYTES=_BYTES,
            num_warps=_WARPS,
        )
