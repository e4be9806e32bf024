"""How each tool finds INT4 codes and group scales for the same values: truecast, and its rivals by their own code.

A rule takes the values ``[N, K]`` float32 and gives codes ``[N, K]`` and the scales ``[N, K/128]`` as the format keeps
them, in BF16. Where a rival's own scale is wider, it is rounded to BF16 and the codes are rounded against the rounded
scale: that is in its favour. The rivals are imported where they are used; how to install them: docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.int4_cases import F32, Matrix
from truecast.casts import int4
from truecast.formats import int4 as codes_of
from truecast.formats import packing

GROUP = 128
Result = tuple[NDArray[np.int8], F32]


def truecast_exact(matrix: Matrix) -> Result:
    """``truecast convert --to w4afp8``: the scale of least error of every group."""
    done = int4.quantize(matrix.packed, matrix.scales)
    codes = codes_of.decode_twos_complement(packing.unpack_nibbles(done.codes))
    return codes, (done.scales.astype(np.uint32) << 16).view(np.float32)


def auto_round_rtn(values: F32) -> Result:
    """auto-round's RTN: the value of largest magnitude becomes -8."""
    import torch
    from auto_round.data_type.int import quant_tensor_rtn_sym

    rounded, scale, _ = quant_tensor_rtn_sym(
        torch.from_numpy(values), bits=4, group_size=GROUP, scale_dtype=torch.bfloat16
    )
    codes = torch.round(rounded.reshape(-1, GROUP) / scale).to(torch.int8)
    return codes.numpy().reshape(values.shape), scale.float().numpy().reshape(len(values), -1)


def auto_round_search(values: F32) -> Result:
    """auto-round's optimized RTN without an importance matrix: 201 scales around the former."""
    import torch
    from auto_round.data_type.int import search_scales

    scale = search_scales(torch.from_numpy(values).reshape(-1, GROUP), 4)
    return nearest(values, scale.bfloat16().float().numpy().reshape(len(values), -1))


def llm_compressor(observer: str) -> Callable[[F32], Result]:
    """llm-compressor's ``memoryless_minmax`` (amax / 7.5) or ``memoryless_mse`` observer on float32 weights."""

    def rule(values: F32) -> Result:
        import torch
        from compressed_tensors.quantization import QuantizationArgs
        from llmcompressor.observers import Observer

        args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP)
        watch: Any = Observer.load_from_registry(observer, base_name="weight", args=args)
        scale = watch(torch.from_numpy(values)).get_qparams()["scale"]
        return nearest(values, scale.bfloat16().float().numpy())

    return rule


def compressed_tensors_bf16(values: F32) -> Result:
    """compressed-tensors' min-max RTN on BF16 weights, as a model in BF16 gets it: it divides in BF16."""
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP)
    weight = torch.from_numpy(values).bfloat16()  # exact: MXFP4 values have three significant bits
    groups = weight.unflatten(-1, (-1, GROUP))
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    codes = quantize(weight, scale, zero, args, dtype=torch.int8)
    return codes.numpy(), scale.float().numpy()


def amax_7(values: F32) -> Result:
    """TensorRT-LLM's rule for W4AFP8: amax / 7; 1 for a group without a non-zero value, where the rule divides by 0."""
    amax = np.abs(values.reshape(len(values), -1, GROUP)).max(axis=-1)
    return nearest(values, bfloat16(np.where(amax == 0, np.float32(1), amax / np.float32(7))))


RIVALS: dict[str, Callable[[F32], Result]] = {
    "auto-round RTN (signed full range)": auto_round_rtn,
    "auto-round optimized RTN (201 scales)": auto_round_search,
    "llm-compressor min-max (amax / 7.5)": llm_compressor("memoryless_minmax"),
    "llm-compressor mse observer": llm_compressor("memoryless_mse"),
    "compressed-tensors min-max in BF16": compressed_tensors_bf16,
    "amax / 7 (TensorRT-LLM)": amax_7,
}


def nearest(values: F32, scale: F32) -> Result:
    """Codes nearest to ``value / scale``, ties to even, held to -8..7."""
    groups = values.reshape(*scale.shape, GROUP).astype(np.float64)
    codes = np.clip(np.rint(groups / scale.astype(np.float64)[..., None]), -8, 7)
    return codes.astype(np.int8).reshape(values.shape), scale


def bfloat16(values: F32) -> F32:
    """Nearest BF16 of positive finite floats, ties to even, as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def brute_force(group: NDArray[np.float64]) -> float:
    """Least sum of squared errors of one group over every normal BF16 scale of either sign, all 65,024 of them."""
    bits = np.arange(0x0080, 0x7F80, dtype=np.uint32) << 16
    positive = bits.view(np.float32).astype(np.float64)
    least = np.inf
    for scales in np.array_split(np.concatenate([positive, -positive]), 128):
        codes = np.clip(np.rint(group / scales[:, None]), -8, 7)
        least = min(least, float(((group - scales[:, None] * codes) ** 2).sum(axis=1).min()))
    return least
