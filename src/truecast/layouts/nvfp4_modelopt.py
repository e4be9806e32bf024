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
STACKED = False

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


def _groups(activations: bool) -> dict[str, Any]:
    static = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    inputs = dict(static) if activations else None
    return {"group_0": {"targets": ["Linear"], "weights": dict(static), "input_activations": inputs}}


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """The top-level block that SGLang (which reads ``ignore``) and vLLM (``ignore``, else ``exclude_modules``) parse.

    ``excluded`` are globs over runtime module names. Without activation scales, ``input_activations`` is null.
    """
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "format": "nvfp4-pack-quantized",
        "group_size": 16,
        "kv_cache_quant_algo": None,
        "config_groups": _groups(activations),
        "exclude_modules": list(excluded),
        "ignore": list(excluded),
    }


def hybrid_config(
    fp8: dict[str, Any], banks: Sequence[str], excluded: Sequence[str], activations: bool
) -> dict[str, Any]:
    """The block for FP8 modules with NVFP4 experts (DeepSeek-V4): the source's ``fp8`` block, extended.

    ``banks`` are the expert banks that are NVFP4. Source: NVIDIA/Model-Optimizer a2fbac7,
    examples/deepseek/deepseek_v4/quantize_to_nvfp4.py; read by SGLang 0.5.20 configs/model_config.py and vLLM 0.33
    models/deepseek_v41/quant_config.py.
    """
    return {
        **fp8,
        "moe_quant_algo": "NVFP4",
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "config_groups": _groups(activations),
        "quantized_layers": {bank: {"quant_algo": "NVFP4", "group_size": 16} for bank in banks},
        "ignore": list(excluded),
    }


def hf_quant_config(config: dict[str, Any], version: str) -> dict[str, Any]:
    """``hf_quant_config.json``, the older file beside config.json: the same facts as ``config`` (one of the above)."""
    quantization = {
        "quant_algo": config["quant_algo"],
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": list(config["ignore"]),
    }
    if "quantized_layers" in config:
        quantization["quantized_layers"] = config["quantized_layers"]
    return {"producer": {"name": "truecast", "version": version}, "quantization": quantization}
