"""Looking tokens up in an embedding that stays on disk, or that is in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from truecast.checkpoint.files import ByteFile
from truecast.checkpoint.header import TensorInfo
from truecast.errors import InputError
from truecast.models.stored import DTYPES

EMBEDDING = "embed_tokens.weight"
"""The embedding's name, behind what all names of a checkpoint begin with."""

_SLAB_BYTES = 64 << 20


def check_tokens(tokens: Tensor, vocab: int) -> None:
    """Raises: InputError for a token outside ``0 .. vocab - 1``."""
    if tokens.numel() == 0:
        raise InputError("no tokens at all")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab:
        raise InputError(
            f"token {low if low < 0 else high} lies outside the vocabulary of {vocab}",
            fix="was the text tokenized for this model?",
        )


def look_up(tokens: Tensor, info: TensorInfo, file: ByteFile) -> Tensor:
    """Rows of a stored embedding ``[V, hidden]``, as stored. Reads slabs of it that hold wanted rows, once each.

    Shapes: ``[N]`` int64 -> ``[N, hidden]``.
    """
    rows, width = info.shape
    row_bytes = info.nbytes // rows
    step = max(1, _SLAB_BYTES // row_bytes)
    tokens = tokens.cpu()
    result = torch.empty(tokens.shape[0], width, dtype=DTYPES[info.dtype])
    slabs = tokens // step
    for slab in torch.unique(slabs).tolist():
        first, end = slab * step, min(rows, (slab + 1) * step)
        data = torch.empty((end - first) * row_bytes, dtype=torch.uint8)
        file.read_into(info.start + first * row_bytes, data.numpy().data)
        where = (slabs == slab).nonzero()[:, 0]
        result[where] = data.view(result.dtype).reshape(-1, width)[tokens[where] - first]
    return result
