"""compressed-tensors ``mxfp4-pack-quantized``: the form in which Kimi-K3 is released.

``<module>.weight_packed`` U8 ``[out, in/2]`` and ``<module>.weight_scale`` U8 (E8M0) ``[out, in/32]``.

Source: vllm-project/compressed-tensors ac8e2ba8, compressors/mxfp4/base.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts import suffixed
from truecast.layouts.base import Matrix, OutTensor

NAME = "mxfp4-compressed-tensors"
FORMAT = "mxfp4"
DIALECT = "compressed-tensors"
STACKED = False

_TABLE = suffixed.Suffixes(NAME, FORMAT, ".weight_packed", ("U8",), ".weight_scale", ("U8", "F8_E8M0"))


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.match(_TABLE, tensor, tensors)


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.emit(_TABLE, matrices, activations)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """compressed-tensors block with the ``MXFP4A16`` scheme; ``excluded`` as ``re:`` patterns or exact names."""
    return compressed_tensors_config("mxfp4-pack-quantized", "group", 32, "torch.uint8", excluded, None)


def compressed_tensors_config(
    packing: str,
    strategy: str,
    group: int | None,
    scale_dtype: str | None,
    excluded: Sequence[str],
    input_activations: dict[str, Any] | None,
    element: tuple[str, int] = ("float", 4),
) -> dict[str, Any]:
    """The ``quantization_config`` that compressed-tensors writes for one scheme on all Linear modules.

    ``element`` is the weights' type and bits.
    """
    kind, bits = element
    weights = {
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "group_size": group,
        "symmetric": True,
        "dynamic": False,
        "scale_dtype": scale_dtype,
        "zp_dtype": None,
        "actorder": None,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": packing,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "format": packing,
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": input_activations,
                "output_activations": None,
            }
        },
        "ignore": list(excluded),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
