"""W4AFP8 as SGLang's ``w4afp8`` method reads it: INT4 experts in groups of 128, FP8 activations.

``<module>.weight`` I8 ``[out, in/2]``, two's-complement codes, the even element in the low nibble;
``.weight_scale_inv`` BF16 (or F32) ``[out, in/128]``, which despite its name *multiplies*; ``.input_scale`` F32 (or
BF16) scalar, the scale of the FP8 activations: ``x = input_scale * x_fp8``. Where it is missing the engine takes 1.

Linear modules beside the experts are FP8 in blocks (see :mod:`truecast.layouts.fp8_deepseek`) unless the config
names them. Some files spell an expert's weights ``gate_proj``, ``up_proj``, ``down_proj`` but its activation scales
``w1``, ``w3``, ``w2``; they are read.

Source: sgl-project/sglang 0.5.20, layers/quantization/w4afp8.py; NVIDIA/TensorRT-LLM,
examples/quantization/quantize_mixed_precision_moe.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts import suffixed
from truecast.layouts.base import Matrix, OutTensor

NAME = "w4afp8-sglang"
FORMAT = "w4afp8"
DIALECT = "sglang"
STACKED = False

_TABLE = suffixed.Suffixes(
    NAME,
    FORMAT,
    ".weight",
    ("I8",),
    ".weight_scale_inv",
    ("BF16", "F32"),
    input_scale=".input_scale",
    input_dtypes=("F32", "BF16"),
)
_SCALE_LEAVES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """See :class:`truecast.layouts.base.Layout`."""
    return [_with_scale_of_other_leaf(matrix, tensors) for matrix in suffixed.match(_TABLE, tensor, tensors)]


def _with_scale_of_other_leaf(matrix: Matrix, tensors: Mapping[str, TensorInfo]) -> Matrix:
    parent, _, leaf = matrix.name.rpartition(".")
    if matrix.input_scale is not None or leaf not in _SCALE_LEAVES:
        return matrix
    scale = tensors.get(f"{parent}.{_SCALE_LEAVES[leaf]}.input_scale")
    return replace(matrix, input_scale=suffixed.scalar(scale, _TABLE.input_dtypes))


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """Always with activation scales, for the engine's own static ones need them.

    See :class:`truecast.layouts.base.Layout`.
    """
    return suffixed.emit(_TABLE, matrices, True)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """The ``w4afp8`` block. ``excluded`` are full module names: its readers know neither globs nor patterns.

    Forks read the list under the one key or the other; SGLang 0.5.20 itself reads ``quant_method`` alone. There is no
    ``activation_scheme``, which would say of linear modules and experts the same.
    """
    return {
        "quant_method": "w4afp8",
        "group_size": 128,
        "weight_block_size": [128, 128],
        "linear_activation_scheme": "dynamic",
        "moe_activation_scheme": "static",
        "ignored_layers": list(excluded),
        "modules_to_not_convert": list(excluded),
    }
