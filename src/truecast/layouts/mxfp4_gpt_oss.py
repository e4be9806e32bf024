"""gpt-oss's MXFP4: the experts of a layer stacked in one tensor, gate and up rows interleaved.

``<bank>.gate_up_proj_blocks`` U8 ``[E, 2I, H/32, 16]`` and ``_scales`` U8 (E8M0) ``[E, 2I, H/32]``, gate in the even
rows and up in the odd ones; ``<bank>.down_proj_blocks`` ``[E, H, I/32, 16]`` and ``_scales``; biases ``_bias``
``[E, rows]``. The 16 bytes of a block are the same bytes, in the same order, as in compressed-tensors' form.

Seen as matrices, one module per expert: ``<bank>.<e>.gate_proj``, ``.up_proj``, ``.down_proj``.

Source: openai/gpt-oss, gpt_oss/torch/weights.py and model.py (``swiglu`` takes ``x[..., ::2]`` as gate).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truecast.checkpoint.header import TensorInfo
from truecast.layouts.base import Matrix, OutTensor
from truecast.layouts.stacked import MEMBERS, is_stacked_bias, stack_experts, unstack

NAME = "mxfp4-gpt-oss"
FORMAT = "mxfp4"
DIALECT = "gpt-oss"
STACKED = True


def match(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """All experts' matrices of one stacked tensor. See :class:`truecast.layouts.base.Layout`."""
    stem = tensor.name.removesuffix("_blocks")
    if stem == tensor.name or tensor.dtype != "U8" or len(tensor.shape) != 4 or tensor.shape[3] != 16:
        return []
    experts, stacked_rows, blocks, _ = tensor.shape
    bank, _, projection = stem.rpartition(".")
    names = MEMBERS.get(projection)
    scale, bias = tensors.get(stem + "_scales"), tensors.get(stem + "_bias")
    if names is None or stacked_rows % len(names) or not bank:
        return []
    if scale is None or scale.dtype not in ("U8", "F8_E8M0") or scale.shape != tensor.shape[:3]:
        return []
    if bias is not None and not is_stacked_bias(bias, experts, stacked_rows):
        return []
    return unstack(NAME, stem, stacked_rows, blocks * 32, tensor, scale, bias)


def emit(matrices: Sequence[Matrix], activations: bool) -> Iterator[OutTensor]:
    """Stack the experts of each bank. See :class:`truecast.layouts.base.Layout`.

    Raises: InputError where experts are missing or differ in shape, so that they cannot be stacked.
    """
    for bank, projection, pieces in stack_experts(matrices):
        first = pieces[0][0]
        stem, lead, rows = f"{bank}.{projection}", len(pieces), first.rows * len(pieces[0])
        blocks = first.cols // 32
        yield OutTensor(f"{stem}_blocks", "U8", (lead, rows, blocks, 16), "codes", pieces=pieces)
        yield OutTensor(f"{stem}_scales", "U8", (lead, rows, blocks), "scale", pieces=pieces)
        if first.bias is not None:
            yield OutTensor(f"{stem}_bias", first.bias.tensor.dtype, (lead, rows), "bias", pieces=pieces)


def quantization_config(excluded: Sequence[str], activations: bool) -> dict[str, Any]:
    """transformers' ``mxfp4`` block."""
    return {"quant_method": "mxfp4", "modules_to_not_convert": list(excluded)}
