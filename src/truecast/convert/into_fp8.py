"""The bytes of a matrix under an FP8 target, and of a plain BF16 weight that becomes FP8 beside W4AFP8 experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from truecast.casts import fp8
from truecast.checkpoint.header import TensorInfo
from truecast.convert.parts import Parts, Read, Tally
from truecast.convert.reading import Codes, read_scale
from truecast.errors import InputError
from truecast.layouts.base import Matrix

U8 = NDArray[np.uint8]

TILES = {"deepseek": fp8.BLOCK, "compressed-tensors": fp8.CHANNEL}
"""The elements that share a scale, by dialect."""

_INFINITY = np.uint16(0x7F80)
_CHUNK = 1 << 22


def parts(matrix: Matrix, read: Read, dialect: str) -> Parts:
    """E4M3 codes under power-of-two scales (float32); exact where the scan said so."""
    packed, scale = Codes(matrix, read).packed(), read_scale(matrix, read)
    bases, _ = fp8.exact_bases(packed, scale, TILES[dialect])
    scales = np.ldexp(np.float32(1), bases).astype("<f4")
    return Parts(scales.view(np.uint8), lambda: fp8.from_mxfp4(packed, scale, bases, TILES[dialect]))


def inexact_elements(matrix: Matrix, read: Read, dialect: str) -> int:
    """How many elements of an MXFP4 matrix E4M3 cannot hold."""
    return fp8.exact_bases(Codes(matrix, read).packed(), read_scale(matrix, read), TILES[dialect])[1]


def plain(info: TensorInfo, read: Read, tally: Tally) -> tuple[U8, U8]:
    """Codes and scales of a plain BF16 weight ``[N, K]``, in 128 x 128 blocks, as rows of bytes."""
    bits = np.frombuffer(read(info.file).read(info.start, info.end), dtype="<u2").reshape(info.shape)
    try:
        made = fp8.quantize(bits, fp8.BLOCK)
    except ValueError as error:
        raise _no_number(info, str(error)) from None
    module = info.name.removesuffix(".weight")
    if tally.first(module):
        tally.fp8[module] = {"squared_error": made.squared_error, "squared_sum": made.squared_sum}
    return made.codes, made.scales.astype("<f4").view(np.uint8)


def check_plain(info: TensorInfo, read: Read) -> None:
    """Refuse NaN and infinity in a BF16 weight. Raises: InputError naming row and column."""
    file = read(info.file)
    for start in range(info.start, info.end, _CHUNK):
        bits = np.frombuffer(file.read(start, min(start + _CHUNK, info.end)), dtype="<u2")
        if (bad := bits & _INFINITY == _INFINITY).any():
            row, column = divmod((start - info.start) // 2 + int(bad.argmax()), info.shape[1])
            raise _no_number(info, f"row {row}, column {column}: NaN or infinity, which has no FP8 code")
    file.forget(info.start, info.end)


def _no_number(info: TensorInfo, why: str) -> InputError:
    return InputError(why, where=info.where, fix="download the shard again, or keep it BF16 with --attention bf16")
