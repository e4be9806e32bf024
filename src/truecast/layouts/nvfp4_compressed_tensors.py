"""compressed-tensors ``nvfp4-pack-quantized``.

``<module>.weight_packed`` U8 ``[out, in/2]``, ``.weight_scale`` F8_E4M3 ``[out, in/16]``, ``.weight_global_scale`` F32
``[1]``, which *divides*: it is one over ModelOpt's ``weight_scale_2``. ``.input_global_scale`` F32 ``[1]`` likewise.

Source: vllm-project/compressed-tensors ac8e2ba8, compressors/nvfp4/base.py and
entrypoints/convert/converters/modelopt_nvfp4.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts import suffixed
from truecast.layouts.base import Matrix, OutTensor
from truecast.layouts.mxfp4_compressed_tensors import compressed_tensors_config

NAME = "nvfp4-compressed-tensors"
FORMAT = "nvfp4"
DIALECT = "compressed-tensors"
STACKED = False

_TABLE = suffixed.Suffixes(
    NAME,
    FORMAT,
    ".weight_packed",
    ("U8",),
    ".weight_scale",
    ("F8_E4M3",),
    global_scale=".weight_global_scale",
    global_shape=(1,),
    input_scale=".input_global_scale",
)


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.match(_TABLE, tensor, tensors)


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`."""
    return suffixed.emit(_TABLE, matrices, activations)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """compressed-tensors block: ``NVFP4A16``, or ``NVFP4`` (activations scaled per group at run time)."""
    inputs: dict[str, Any] = {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": 16,
        "symmetric": True,
        "dynamic": "local",
        "scale_dtype": "torch.float8_e4m3fn",
        "zp_dtype": None,
        "observer": "static_minmax",
        "observer_kwargs": {},
    }
    return compressed_tensors_config(
        "nvfp4-pack-quantized", "tensor_group", 16, "torch.float8_e4m3fn", excluded, inputs if activations else None
    )
