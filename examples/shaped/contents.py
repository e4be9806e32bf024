"""Made-up tensor contents that look like trained ones, generated as fast as a disk can take them.

Each kind of content is one buffer of at most a megabyte, made once from the seed; a tensor is that buffer repeated
from an offset that depends on the tensor's name. The MXFP4 buffers hold real quantizer output: Gaussian blocks of
varied width, so codes and scales go together, scale bytes lie around 118..123, and one block in 16,384 is all zero with
byte 0. Codes and scale of one matrix start at the same block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from truecast.casts.bf16_to_mxfp4 import BLOCK, quantize
from truecast.checkpoint.header import nbytes_of
from truecast.formats import e4m3

UNITS = 65521
"""Entries of a buffer (blocks or elements): a prime, so that no matrix repeats in step with its rows."""

CODES, SCALES, WEIGHT, NORM, BIAS, FP8, FP8_SCALES, A_LOG, EXPERT_IDS = (
    "codes", "scales", "weight", "norm", "bias", "fp8", "fp8_scales", "a_log", "expert_ids",
)  # fmt: skip
"""What a tensor holds; the last two are generated whole, the others repeat a buffer."""

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor to be made: its header entry and what to fill it with.

    ``limit`` is the number of experts for ``EXPERT_IDS`` and that of heads for ``A_LOG``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: str = WEIGHT
    limit: int = 0

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return nbytes_of(self.dtype, self.shape)


def content(spec: Spec, seed: int) -> Iterator[memoryview]:
    """The bytes of a tensor, piece by piece; the same for the same spec and seed."""
    if spec.fill in (A_LOG, EXPERT_IDS):
        yield memoryview(_whole(spec, seed).tobytes())
        return
    buffer, unit_bytes = _buffer(spec.fill, spec.dtype, seed)
    start = _draw(seed, _matrix_name(spec.name)) % UNITS * unit_bytes
    left = spec.nbytes
    while left:
        piece = buffer[start : start + min(left, _CHUNK_BYTES)]
        yield piece
        left -= len(piece)
        start = (start + len(piece)) % len(buffer)


def _matrix_name(name: str) -> str:
    """What codes and scales of one matrix have in common, whatever the layout calls them."""
    for suffix in ("_packed", "_blocks", "_scales", "_scale", ".weight", ".scale"):
        name = name.removesuffix(suffix)
    return name


def _draw(seed: int, text: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{text}".encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=16)
def _buffer(fill: str, dtype: str, seed: int) -> tuple[memoryview, int]:
    """One buffer, and the bytes of one of its ``UNITS`` entries."""
    if fill in (CODES, SCALES):
        codes, scales = _mxfp4_blocks(seed)
        return memoryview(codes if fill == CODES else scales), BLOCK // 2 if fill == CODES else 1
    rng = np.random.default_rng([seed, *fill.encode()])
    if fill == FP8:
        data = e4m3.encode_nearest_even(rng.standard_normal(UNITS) * 64).tobytes()
    elif fill == FP8_SCALES:
        data = rng.integers(113, 118, UNITS, dtype=np.uint8).tobytes()
    else:
        values = rng.standard_normal(UNITS) * (0.1 if fill == NORM else 0.02) + (1 if fill == NORM else 0)
        data = values.astype({"BF16": ml_dtypes.bfloat16, "F32": np.float32}[dtype]).tobytes()
    return memoryview(data), len(data) // UNITS


@lru_cache(maxsize=2)
def _mxfp4_blocks(seed: int) -> tuple[bytes, bytes]:
    rng = np.random.default_rng([seed, *b"mxfp4"])
    width = 2.0 ** rng.uniform(-6.5, -3.5, (UNITS, 1))
    width[rng.integers(0, UNITS, UNITS // 16384 or 4)] = 0.0
    packed, scales = quantize((rng.standard_normal((UNITS, BLOCK)) * width).astype(np.float32))
    packed[scales[:, 0] == 0] = 0  # plus zeros only
    return packed.tobytes(), scales.tobytes()


def _whole(spec: Spec, seed: int) -> NDArray[np.generic]:
    rng = np.random.default_rng(_draw(seed, spec.name))
    if spec.fill == A_LOG:
        values = np.zeros(spec.shape, dtype=np.float32)
        values[: spec.limit] = np.log(rng.uniform(1, 16, spec.limit))
        return values
    tokens, choices = spec.shape
    first = rng.integers(0, spec.limit, (tokens, 1))
    return ((first + np.arange(choices) * (spec.limit // choices)) % spec.limit).astype(np.int64)
