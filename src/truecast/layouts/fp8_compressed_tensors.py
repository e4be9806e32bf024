"""compressed-tensors ``float-quantized``: FP8 with one scale for each output channel.

``<module>.weight`` F8_E4M3 ``[out, in]`` and ``.weight_scale`` BF16 (or F32) ``[out, 1]``, which multiplies. Where
activations are scaled statically, ``.input_scale`` BF16 or F32 ``[1]`` is read; it is never written.

Source: vllm-project/compressed-tensors 0.20.1, compressors/naive_quantized/base.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts import suffixed
from truecast.layouts.base import Matrix, OutTensor
from truecast.layouts.mxfp4_compressed_tensors import compressed_tensors_config
from truecast.layouts.w4afp8_compressed_tensors import DYNAMIC_TOKEN_FP8

NAME = "fp8-compressed-tensors"
FORMAT = "fp8"
DIALECT = "compressed-tensors"
STACKED = False

_TABLE = suffixed.Suffixes(
    NAME,
    FORMAT,
    ".weight",
    ("F8_E4M3",),
    ".weight_scale",
    ("F32", "BF16"),
    input_scale=".input_scale",
    input_dtypes=("F32", "BF16"),
    packed=1,
    tile=(1, 0),
)


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.match(_TABLE, tensor, tensors)


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """Without activation scales: they are found at run time. See :class:`truecast.layouts.base.Layout`."""
    return suffixed.emit(_TABLE, matrices, False)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """compressed-tensors block with the ``FP8_DYNAMIC`` scheme; ``excluded`` as ``re:`` patterns or exact names."""
    return compressed_tensors_config(
        "float-quantized", "channel", None, None, excluded, DYNAMIC_TOKEN_FP8, ("float", 8)
    )
