"""The noise floor: how far the reference is from itself when every layer rounds a little differently.

Kernels, batch sizes and parallel splits of one and the same model differ by rounding. The reference is run again with
each layer's output multiplied by ``1 + 2^-9 n``, n normal: the size of a bfloat16 rounding (half an ulp is between
2^-9 and 2^-8 of the value). What a cast costs below that floor no deployment would notice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

SIZE = 2.0**-9


def add_noise(
    stream: torch.Tensor, documents: Sequence[int], lengths: Sequence[int], seed: int, layer: int
) -> torch.Tensor:
    """A layer's output with noise. Shape: ``[N, hidden]``, documents one after another.

    The noise depends on seed, layer and document, not on which documents share a tile, so that a run that goes on after
    a kill draws it again. It differs between devices.
    """
    parts = [
        torch.randn(
            (length, stream.shape[1]),
            generator=torch.Generator(stream.device).manual_seed(_key(seed, layer, document)),
            device=stream.device,
            dtype=torch.float32,
        )
        for document, length in zip(documents, lengths, strict=True)
    ]
    wide = stream if stream.dtype == torch.float64 else stream.float()
    return (wide * (1 + SIZE * torch.cat(parts))).to(stream.dtype)


def _key(seed: int, layer: int, document: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{layer}/{document}".encode()).digest()[:8], "little") >> 1
