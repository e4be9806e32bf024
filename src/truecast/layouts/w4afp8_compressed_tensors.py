"""W4AFP8 in compressed-tensors' ``pack-quantized``: INT4 in groups of 128, FP8 activations scaled per token at run time.

``<module>.weight_packed`` I32 ``[out, in/8]``, the element ``8 i + j`` in bits ``4 j`` to ``4 j + 3`` of word ``i``, stored
as value + 8; ``.weight_scale`` BF16 (or F16, F32) ``[out, in/128]``, which multiplies; ``.weight_shape`` I64 (or I32)
``[2]``: ``out, in``. Zero points and activation order are other schemes, and not read.

Source: vllm-project/compressed-tensors 0.20.1, compressors/pack_quantized; vLLM 0.33,
compressed_tensors_w4a8_fp8.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from truecast.checkpoint.files import ByteFile
from truecast.checkpoint.header import TensorInfo
from truecast.errors import InputError
from truecast.layouts import suffixed
from truecast.layouts.base import Matrix, OutTensor, read_view
from truecast.layouts.mxfp4_compressed_tensors import compressed_tensors_config

NAME = "w4afp8-compressed-tensors"
FORMAT = "w4afp8"
DIALECT = "compressed-tensors"
STACKED = False

_TABLE = suffixed.Suffixes(
    NAME,
    FORMAT,
    ".weight_packed",
    ("I32",),
    ".weight_scale",
    ("BF16", "F16", "F32"),
    shape=".weight_shape",
    packed=8,
    foreign=(".weight_zero_point", ".weight_g_idx"),
)

DYNAMIC_TOKEN_FP8: dict[str, Any] = {
    "num_bits": 8,
    "type": "float",
    "strategy": "token",
    "group_size": None,
    "symmetric": True,
    "dynamic": True,
    "observer": None,
    "observer_kwargs": {},
}
"""``input_activations`` of FP8 activations with one scale a token, found at run time."""


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.match(_TABLE, tensor, tensors)


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.emit(_TABLE, matrices, activations)


def check_stored_shape(matrix: Matrix, file: ByteFile) -> None:
    """Compare the stored shape with what the words hold: 8-bit codes in groups of 64 have the same headers.

    ``file`` is the one that holds the shape. Raises: InputError where they differ.
    """
    assert matrix.shape is not None
    tensor = matrix.shape.tensor
    stored = read_view(matrix.shape, file).view("<i8" if tensor.dtype == "I64" else "<i4")
    if not np.array_equal(stored.ravel(), (matrix.rows, matrix.cols)):
        raise InputError(
            f"says {stored.ravel().tolist()}, but as 4-bit codes the words hold {[matrix.rows, matrix.cols]}",
            where=tensor.where,
            fix="only 4-bit codes in groups of 128 are read",
        )


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """compressed-tensors block with the ``W4AFP8`` scheme; ``excluded`` as ``re:`` patterns or exact names."""
    return compressed_tensors_config("pack-quantized", "group", 128, None, excluded, DYNAMIC_TOKEN_FP8, ("int", 4))
