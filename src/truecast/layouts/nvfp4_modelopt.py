"""NVFP4 as NVIDIA Model-Optimizer stores it.

``<module>.weight`` U8 ``[out, in/2]``, ``.weight_scale`` F8_E4M3 ``[out, in/16]``, ``.weight_scale_2`` F32 scalar, which
*multiplies*; ``.input_scale`` F32 scalar where activations are quantized too.

Source: NVIDIA/Model-Optimizer a2fbac7b, torch/quantization/qtensor/nvfp4_tensor.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts import suffixed
from truecast.layouts.base import Matrix, OutTensor

NAME = "nvfp4-modelopt"
FORMAT = "nvfp4"
DIALECT = "modelopt"

_TABLE = suffixed.Suffixes(
    NAME,
    FORMAT,
    ".weight",
    ("U8",),
    ".weight_scale",
    ("F8_E4M3",),
    global_scale=".weight_scale_2",
    global_shape=(),
    input_scale=".input_scale",
)


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.match(_TABLE, tensor, tensors)


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.emit(_TABLE, matrices, activations)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """The top-level block that SGLang and vLLM read: ``exclude_modules`` are globs over runtime module names."""
    static = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "format": "nvfp4-pack-quantized",
        "group_size": 16,
        "kv_cache_quant_algo": None,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": dict(static),
                "input_activations": dict(static) if activations else None,
            }
        },
        "input_activations": dict(static) if activations else None,
        "exclude_modules": list(excluded),
        "ignore": list(excluded),
    }


def hf_quant_config(excluded: Sequence[str], producer_version: str) -> dict[str, Any]:
    """``hf_quant_config.json``, the older file beside config.json; the same facts."""
    return {
        "producer": {"name": "truecast", "version": producer_version},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": 16,
            "exclude_modules": list(excluded),
        },
    }
