"""NVFP4 banks as NVIDIA Model-Optimizer exports gpt-oss: stacked, stored ``[in, out]``, one global scale a bank.

``<bank>.gate_up_proj`` U8 ``[E, H/2, 2I]`` (two codes a byte along ``in``), ``_weight_scale`` F8_E4M3 ``[E, H/16, 2I]``,
``_weight_scale_2`` and ``_input_scale`` F32 scalars, ``_bias`` ``[E, 2I]``; ``down_proj`` likewise ``[E, I/2, H]``. Gate in
the even columns, up in the odd ones.

Source: nvidia-modelopt 0.47.0, torch/export/unified_export_hf.py and hf_export_handlers.py, and a file it exported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts import nvfp4_modelopt
from truecast.layouts.base import Matrix, OutTensor
from truecast.layouts.stacked import MEMBERS, is_stacked_bias, stack_experts, unstack

NAME = "nvfp4-modelopt-stacked"
FORMAT = "nvfp4"
DIALECT = "modelopt"
STACKED = True

_SCALARS = (("F32", ()), ("F32", (1,)))


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """All experts' matrices of one stacked tensor. See :class:`truecast.layouts.base.Layout`."""
    bank, _, projection = tensor.name.rpartition(".")
    names = MEMBERS.get(projection)
    if names is None or not bank or tensor.dtype != "U8" or len(tensor.shape) != 3:
        return []
    experts, half_cols, stacked_rows = tensor.shape
    scale = tensors.get(f"{tensor.name}_weight_scale")
    global_scale = tensors.get(f"{tensor.name}_weight_scale_2")
    input_scale = tensors.get(f"{tensor.name}_input_scale")
    bias = tensors.get(f"{tensor.name}_bias")
    if half_cols % 16 or stacked_rows % len(names):
        return []
    if scale is None or scale.dtype != "F8_E4M3" or scale.shape != (experts, half_cols // 8, stacked_rows):
        return []
    if global_scale is None or any(s and (s.dtype, s.shape) not in _SCALARS for s in (global_scale, input_scale)):
        return []
    if bias is not None and not is_stacked_bias(bias, experts, stacked_rows):
        return []
    return unstack(
        NAME,
        tensor.name,
        stacked_rows,
        half_cols * 2,
        tensor,
        scale,
        bias,
        transposed=True,
        global_scale=global_scale,
        input_scale=input_scale,
    )


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """See :class:`truecast.layouts.base.Layout`. Raises: InputError where experts cannot be stacked."""
    for bank, projection, pieces in stack_experts(matrices):
        first = pieces[0][0]
        stem, lead, rows = f"{bank}.{projection}", len(pieces), first.rows * len(pieces[0])
        yield OutTensor(stem, "U8", (lead, first.cols // 2, rows), "codes", pieces=pieces, transposed=True)
        scale_shape = (lead, first.cols // 16, rows)
        yield OutTensor(f"{stem}_weight_scale", "F8_E4M3", scale_shape, "scale", pieces=pieces, transposed=True)
        yield OutTensor(f"{stem}_weight_scale_2", "F32", (), "global_scale", pieces=pieces)
        if activations:
            yield OutTensor(f"{stem}_input_scale", "F32", (), "input_scale", pieces=pieces)
        if first.bias is not None:
            yield OutTensor(f"{stem}_bias", first.bias.tensor.dtype, (lead, rows), "bias", pieces=pieces)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """The same block as for one module per expert."""
    return nvfp4_modelopt.quantization_config(excluded, activations)
