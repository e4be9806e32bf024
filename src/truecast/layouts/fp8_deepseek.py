"""FP8 with one scale for each 128 x 128 block, as DeepSeek-V3 is released.

``<module>.weight`` F8_E4M3 ``[out, in]`` and ``.weight_scale_inv`` F32 (or BF16) ``[ceil(out/128), ceil(in/128)]``, which
despite its name *multiplies*. DeepSeek-V4's FP8 modules have ``.scale`` instead and are plain tensors to truecast.

Source: deepseek-ai/DeepSeek-V3, README_WEIGHTS.md; sgl-project/sglang 0.5.20, layers/quantization/fp8.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts import suffixed
from truecast.layouts.base import Matrix, OutTensor

NAME = "fp8-deepseek"
FORMAT = "fp8"
DIALECT = "deepseek"
STACKED = False

BLOCK = 128
"""Rows, and columns, that share one scale."""

_TABLE = suffixed.Suffixes(
    NAME, FORMAT, ".weight", ("F8_E4M3",), ".weight_scale_inv", ("F32", "BF16"), packed=1, tile=(BLOCK, BLOCK)
)


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.match(_TABLE, tensor, tensors)


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.emit(_TABLE, matrices, activations)


def emit_fp8(info: TensorInfo) -> Iterator[OutTensor]:
    """The two tensors that a plain BF16 ``<module>.weight`` ``[out, in]`` becomes: codes, then block scales."""
    assert info.name.endswith(_TABLE.codes), info.name
    rows, cols = info.shape
    yield OutTensor(info.name, "F8_E4M3", (rows, cols), "fp8", source=info)
    name = info.name.removesuffix(_TABLE.codes) + _TABLE.scale
    yield OutTensor(name, "F32", _TABLE.scale_shape(rows, cols), "fp8_scale", source=info)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """DeepSeek-V3's ``fp8`` block, which says of the activations that they are scaled at run time."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": list(excluded),
    }
