"""Plain BF16: what ``--to bf16`` writes, and how ``verify`` finds it again.

Per-expert modules get ``<module>.weight`` BF16 ``[out, in]``. A gpt-oss bank gets what transformers loads: stacked
``<bank>.gate_up_proj`` ``[E, H, 2I]`` and ``down_proj`` ``[E, I, H]``, transposed, gate and up columns interleaved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts import mxfp4_gpt_oss
from truecast.layouts.base import Matrix, OutTensor

NAME = "bf16"
FORMAT = "bf16"
DIALECT = "bf16"


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """Nothing: a plain tensor is not a quantized matrix. See :class:`truecast.layouts.base.Layout`."""
    return []


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`."""
    stacked = [m for m in matrices if m.layout == mxfp4_gpt_oss.NAME]
    for bank, projection, pieces in mxfp4_gpt_oss.stack_experts(stacked):
        first = pieces[0][0]
        rows, stem = first.rows * len(pieces[0]), f"{bank}.{projection}"
        yield OutTensor(stem, "BF16", (len(pieces), first.cols, rows), "weight", pieces=pieces, transposed=True)
        if first.bias is not None:
            shape = (len(pieces), rows)
            yield OutTensor(f"{stem}_bias", first.bias.tensor.dtype, shape, "bias", pieces=pieces)
    for matrix in matrices:
        if matrix.layout == mxfp4_gpt_oss.NAME:
            continue
        shape = (matrix.rows, matrix.cols)
        yield OutTensor(matrix.name + ".weight", "BF16", shape, "weight", pieces=((matrix,),))
        if matrix.bias is not None:
            name, dtype = matrix.name + ".bias", matrix.bias.tensor.dtype
            yield OutTensor(name, dtype, (matrix.rows,), "bias", pieces=((matrix,),))


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """Empty: an unquantized checkpoint has no ``quantization_config``."""
    return {}
