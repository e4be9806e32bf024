"""Plain BF16, one module per expert: ``<module>.weight`` BF16 ``[out, in]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts.base import Matrix, OutTensor

NAME = "bf16"
FORMAT = "bf16"
DIALECT = "bf16"
STACKED = False


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """Nothing: a plain tensor is not a quantized matrix. See :class:`truecast.layouts.base.Layout`."""
    return []


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`."""
    for matrix in matrices:
        shape, piece = (matrix.rows, matrix.cols), ((matrix,),)
        yield OutTensor(matrix.name + ".weight", "BF16", shape, "weight", pieces=piece)
        if matrix.bias is not None:
            yield OutTensor(matrix.name + ".bias", matrix.bias.tensor.dtype, (matrix.rows,), "bias", pieces=piece)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """Empty: an unquantized checkpoint has no ``quantization_config``."""
    return {}
