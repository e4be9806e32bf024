"""CPU time of MXFP4 -> INT4 group 128, per matrix in memory: truecast against its rivals' own code.

    python -m benchmarks.int4_speed [--rounds 7] [--json FILE]

A figure is MB of packed MXFP4 codes for each second of CPU time (user and system, all threads of the process, torch held
to one). Rounds run all paths in turn; median and range are printed. The first rows go from packed MXFP4 to packed INT4,
each by its tool's own code. The last two are a rival's rule alone: from float values that lie ready to codes that are
not packed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import int4_cases as cases
from benchmarks.convert import MATRIX, machine
from truecast.casts import int4
from truecast.casts.bf16_to_mxfp4 import quantize

GROUP = 128


@dataclass(frozen=True, slots=True)
class Forms:
    """One matrix in the forms in which the paths take it."""

    mxfp4: cases.Matrix
    float32: Any
    bfloat16: Any
    packed: Any
    scales: Any


def forms(matrix: cases.Matrix) -> Forms:
    """Everything that a path does not pay for: decoded values, tensors over the same bytes."""
    import torch

    values = torch.from_numpy(matrix.values())
    return Forms(matrix, values, values.bfloat16(), torch.from_numpy(matrix.packed), torch.from_numpy(matrix.scales))


def truecast(forms: Forms, method: int4.Method) -> object:
    """Packed MXFP4 to packed INT4 and scales."""
    return int4.quantize(forms.mxfp4.packed, forms.mxfp4.scales, method)


def auto_round_rule(forms: Forms) -> object:
    """Float32 values to rounded values and scales."""
    import torch
    from auto_round.data_type.int import quant_tensor_rtn_sym

    return quant_tensor_rtn_sym(forms.float32, bits=4, group_size=GROUP, scale_dtype=torch.bfloat16)


def auto_round_packed(forms: Forms, disable_opt_rtn: bool) -> object:
    """Packed MXFP4 to packed INT4 and scales, as its model-free mode does."""
    import torch
    from auto_round.utils.model_free_utils import dequant_mxfp4, quantize_weight_rtn

    weight = dequant_mxfp4(forms.packed, forms.scales, "fp4_e2m1", 32, torch.bfloat16)
    return quantize_weight_rtn(weight, 4, GROUP, disable_opt_rtn=disable_opt_rtn, packing="auto_round")


def compressed_tensors_rule(forms: Forms) -> object:
    """BF16 weight to codes, one a byte, and scales."""
    import torch
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    args = weight_args()
    groups = forms.bfloat16.unflatten(-1, (-1, GROUP))
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    return quantize(forms.bfloat16, scale, zero, args, dtype=torch.int8)


def llm_compressor_packed(forms: Forms, observer: str) -> object:
    """Packed MXFP4 to packed INT4 and scales: its decompressor, llm-compressor's observer, its compressor."""
    import torch
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor.observers import Observer

    common: dict[str, Any] = {"num_bits": 4, "symmetric": True, "strategy": "group"}
    mxfp4 = QuantizationArgs(**common, type="float", group_size=32, scale_dtype=torch.uint8)
    int4_args = weight_args()
    schemes = [QuantizationScheme(targets=["Linear"], weights=args) for args in (mxfp4, int4_args)]
    state = {"weight_packed": forms.packed, "weight_scale": forms.scales}
    weight = MXFP4PackedCompressor.decompress(state, schemes[0])["weight"]
    watch: Any = Observer.load_from_registry(observer, base_name="weight", args=int4_args)
    found = watch(weight).get_qparams()
    state = {"weight": weight, "weight_scale": found["scale"], "weight_zero_point": found["zero_point"]}
    return PackedQuantizationCompressor.compress(state, schemes[1])


def weight_args() -> Any:
    """compressed-tensors' description of INT4 group 128."""
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP)


PATHS: dict[str, tuple[Callable[[Forms], object], int]] = {
    "truecast, least error": (partial(truecast, method="exact"), 0),
    "truecast, signed full range": (partial(truecast, method="signed"), 0),
    "auto-round RTN": (partial(auto_round_packed, disable_opt_rtn=True), 0),
    "auto-round optimized RTN": (partial(auto_round_packed, disable_opt_rtn=False), 1),
    "llm-compressor min-max": (partial(llm_compressor_packed, observer="memoryless_minmax"), 0),
    "llm-compressor mse": (partial(llm_compressor_packed, observer="memoryless_mse"), 1),
    "rule alone: auto-round RTN, float32 to float32": (auto_round_rule, 0),
    "rule alone: compressed-tensors min-max, BF16 to int8": (compressed_tensors_rule, 0),
}
"""Path -> what it does with a matrix, and on how many matrices of a case it is timed (0: on all)."""


def rate(work: Callable[[Forms], object], matrices: list[Forms]) -> float:
    """MB of packed codes a CPU second."""
    begun = time.process_time()
    for matrix in matrices:
        work(matrix)
    return sum(m.mxfp4.packed.nbytes for m in matrices) / 1e6 / (time.process_time() - begun)


def kimi_k3_matrix() -> list[cases.Matrix]:
    """One matrix of the size of a Kimi-K3 expert's w1, Gaussian."""
    values = np.random.default_rng(0).standard_normal(MATRIX).astype(np.float32)
    return [cases.Matrix("w1", *quantize(values))]


def main() -> None:
    """Time all paths on both cases and print a table for each."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"machine": machine(), "load": [os.getloadavg()]}
    for title, make in (
        (f"one Gaussian matrix of {MATRIX[0]} x {MATRIX[1]}", kimi_k3_matrix),
        ("SmolLM2's 30 down_proj of 576 x 1536", cases.down_projections),
    ):
        matrices = [forms(matrix) for matrix in make()]
        rates = timed(matrices, args.rounds)
        result[title] = rates
        print_table(f"{title}, {args.rounds} rounds", rates)
    result["load"].append(os.getloadavg())
    print(f"\n{json.dumps(result['machine'])}\nload average before and after: {result['load']}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def timed(matrices: list[Forms], rounds: int) -> dict[str, list[float]]:
    """Rates of every path in every round; each path runs once before, to compile and to warm up."""
    for work, _ in PATHS.values():
        work(forms(small()))
    rates: dict[str, list[float]] = {name: [] for name in PATHS}
    for _ in range(rounds):
        for name, (work, limit) in PATHS.items():
            rates[name].append(rate(work, matrices[: limit or None]))
    return rates


def small() -> cases.Matrix:
    """A matrix of one group a row."""
    return cases.Matrix("", *quantize(np.random.default_rng(1).standard_normal((8, GROUP)).astype(np.float32)))


def print_table(title: str, rates: dict[str, list[float]]) -> None:
    """Markdown: median and range."""
    ours = statistics.median(next(iter(rates.values())))
    print(f"\n{title}\n\n| path | MB a CPU second: median | range | truecast is faster by |\n|---|---:|---:|---:|")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"| {name} | {median:.1f} | {min(values):.1f} - {max(values):.1f} | {ours / median:.1f} x |")


if __name__ == "__main__":
    main()
