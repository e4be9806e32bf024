"""Small MXFP4 checkpoints whose rows split into groups of 128, and hand-made ones tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from examples.shaped import deepseek_v4, gpt_oss, kimi_k3
from tests.convert.test_plan import write

Tensor = tuple[str, str, tuple[int, ...], bytes]

EXPERT = "model.layers.0.mlp.experts.0."
LEAVES = ("gate_proj", "up_proj", "down_proj")


def make_all(folder: Path) -> dict[str, Path]:
    """One source of each family, by name."""
    kimi_k3.make(folder / "kimi_k3", shape=kimi_k3.K3Shape(experts=2, expert_width=128, heads=4))
    deepseek_v4.make(folder / "deepseek_v4", shape=deepseek_v4.V4Shape(experts=2, expert_width=128))
    gpt_oss.make(folder / "gpt_oss", shape=gpt_oss.GptOssShape(experts=2, hidden=128, expert_width=256, heads=8))
    llama(folder / "generic")
    return {path.name: path for path in sorted(folder.iterdir())}


def llama(folder: Path) -> Path:
    """SmolLM-like names: packed MLP, BF16 attention of which layer 1's k_proj does not split into blocks."""
    shards: dict[str, list[Tensor]] = {}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        tensors = [t for leaf in LEAVES for t in packed(f"{prefix}mlp.{leaf}", 128, 256 if leaf == LEAVES[2] else 128)]
        for leaf, rows in (("q_proj", 256), ("k_proj", 128 - 64 * layer), ("v_proj", 128), ("o_proj", 128)):
            cols = 256 if leaf == "o_proj" else 128
            tensors.append(plain(f"{prefix}self_attn.{leaf}.weight", rows, cols))
        tensors.append(plain(f"{prefix}input_layernorm.weight", 128))
        shards[f"model-0000{layer + 1}-of-00002.safetensors"] = tensors
    shards["model-00002-of-00002.safetensors"].append(plain("model.embed_tokens.weight", 32, 128))
    return write(folder, shards, json.dumps({"model_type": "llama", "tie_word_embeddings": True}))


def packed(module: str, rows: int, cols: int, seed: int = 0, scale: Any = None) -> list[Tensor]:
    """Random MXFP4 codes with scale bytes within 5 of one another, or as given, as compressed-tensors stores them."""
    rng = np.random.default_rng([seed, *module.encode()])
    scales = np.broadcast_to(rng.integers(117, 123, (rows, cols // 32)) if scale is None else scale, (rows, cols // 32))
    return [
        (f"{module}.weight_packed", "U8", (rows, cols // 2), rng.bytes(rows * cols // 2)),
        (f"{module}.weight_scale", "U8", (rows, cols // 32), scales.astype(np.uint8).tobytes()),
    ]


def plain(name: str, *shape: int, seed: int = 0) -> Tensor:
    """A random BF16 tensor."""
    values = np.random.default_rng([seed, *name.encode()]).standard_normal(shape) * 0.02
    return bf16(name, values)


def bf16(name: str, values: NDArray[Any]) -> Tensor:
    """A BF16 tensor of these values."""
    return name, "BF16", values.shape, values.astype(ml_dtypes.bfloat16).tobytes()


def experts(rows: int = 128, cols: int = 128) -> list[Tensor]:
    """One expert: gate, up, down."""
    return [t for leaf in LEAVES for t in packed(EXPERT + leaf, rows, cols)]


def one_file(folder: Path, tensors: list[Tensor], config: dict[str, Any] | None = None) -> Path:
    """A checkpoint of one shard."""
    return write(folder, {"model.safetensors": tensors}, json.dumps(config or {"model_type": "llama"}))


def replaced(tensors: list[Tensor], *new: Tensor, without: tuple[str, ...] = ()) -> list[Tensor]:
    """The tensors with some replaced by name, and some left out."""
    by_name = {t[0]: t for t in new}
    assert by_name.keys() <= {t[0] for t in tensors}
    return [by_name.get(t[0], t) for t in tensors if t[0] not in without]
