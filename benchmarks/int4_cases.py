"""The MXFP4 matrices on which INT4 rules are compared: three laws with a stated seed, and trained weights."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.smollm2 import moe
from examples.smollm2.source import Source, find_gguf
from truecast.casts.bf16_to_mxfp4 import quantize
from truecast.checkpoint.source import open_checkpoint
from truecast.formats import e2m1, e8m0, packing
from truecast.layouts.recognise import recognise

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

LAW_SHAPE = (2048, 512)
"""1,048,576 weights a law."""

LAWS: dict[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    "Gauss": lambda rng: rng.standard_normal(LAW_SHAPE),
    "Student t5": lambda rng: rng.standard_t(5, LAW_SHAPE),
    "Laplace": lambda rng: rng.laplace(size=LAW_SHAPE),
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in MXFP4: ``packed`` codes ``[N, K/2]``, low nibble first, and E8M0 ``scales`` ``[N, K/32]``."""

    name: str
    packed: U8
    scales: U8

    def values(self) -> F32:
        """The stored values, ``[N, K]``. Exact."""
        codes = packing.unpack_nibbles(self.packed).reshape(*self.scales.shape, 32)
        exponents = self.scales.astype(np.int32) - e8m0.BIAS
        return np.ldexp(e2m1.decode(codes), exponents[..., None]).reshape(len(codes), -1)


def law(name: str, seed: int) -> list[Matrix]:
    """One matrix of independent draws of width 1, rounded to MXFP4 by the rule of the OCP specification."""
    return [Matrix(name, *quantize(LAWS[name](np.random.default_rng(seed)).astype(np.float32)))]


def down_projections() -> list[Matrix]:
    """SmolLM2's 30 ``down_proj`` of 576 x 1536, rounded by the same rule; its other inputs are 576, no multiple of 128."""
    tensors = Source.open(find_gguf()).tensors()
    return [Matrix(name, *quantize(values)) for name, values in tensors if name.endswith("down_proj.weight")]


def experts() -> list[Matrix]:
    """The 144 expert matrices of the checkpoint that ``examples.smollm2.moe`` makes."""
    with tempfile.TemporaryDirectory() as folder:
        moe.make(Path(folder) / "moe")
        checkpoint = open_checkpoint(Path(folder) / "moe")
        matrices = []
        for name, matrix in recognise(checkpoint.tensors).matrices.items():
            parts = []
            for tensor in (matrix.codes.tensor, matrix.scale.tensor):
                with checkpoint.opener(tensor.file) as file:
                    data = np.frombuffer(file.read(tensor.start, tensor.end), dtype=np.uint8)
                parts.append(data.reshape(tensor.shape))
            matrices.append(Matrix(name, *parts))
    return matrices
