"""A small checkpoint in Kimi-K3's form with random weights that make every part of the model matter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from examples.shaped.contents import A_LOG, BIAS, CODES, NORM, SCALES, Spec
from examples.shaped.kimi_k3 import K3Shape, shards
from examples.shaped.kimi_k3_files import small_files
from examples.shaped.shards import write_checkpoint

SHAPE = K3Shape(
    layers=4,
    experts=6,
    hidden=64,
    latent=128,
    expert_width=128,
    dense_width=96,
    heads=2,
    head_dim=16,
    q_lora=32,
    kv_lora=24,
    rope_dim=8,
    vocab=320,
    vision_layers=1,
)
"""KDA in layers 0, 1, 2; MLA in 3; experts from layer 1 on."""

TEXT = {"attn_res_block_size": 2, "num_experts_per_token": 3, "routed_scaling_factor": 1.5}
"""Blocks begin at layers 0 and 2."""


def make(folder: Path, shape: K3Shape = SHAPE) -> Path:
    """Write the checkpoint. Returns the folder."""
    write_checkpoint(folder, shards(shape), small_files(shape), metadata={}, fill=fill)
    edit_config(folder, **TEXT)
    return folder


def edit_config(folder: Path, **text: Any) -> dict[str, Any]:
    """Change text_config, keys set to None removed; gives the text_config as it then is."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    inner: dict[str, Any] = config["text_config"]
    inner.update(text)
    config["text_config"] = {k: v for k, v in inner.items() if v is not None}
    path.write_text(json.dumps(config))
    return dict(config["text_config"])


def fill(spec: Spec) -> Iterator[memoryview]:
    """Contents of a tensor: the same for the same name."""
    rng = np.random.default_rng(int.from_bytes(hashlib.blake2b(spec.name.encode(), digest_size=8).digest(), "little"))
    if spec.fill == CODES:
        yield memoryview(rng.integers(0, 256, spec.shape, dtype=np.uint8).tobytes())
        return
    if spec.fill == SCALES:
        yield memoryview(rng.integers(121, 124, spec.shape, dtype=np.uint8).tobytes())
        return
    values = rng.standard_normal(spec.shape)
    if spec.fill == A_LOG:
        values = np.zeros(spec.shape)
        values[: spec.limit] = np.log(rng.uniform(0.5, 4, spec.limit))
    elif spec.fill == NORM:
        values = 1 + 0.2 * values
    elif spec.fill == BIAS:
        values = 0.3 * values
    elif "embed_tokens" not in spec.name:
        values = values * (1.5 if "conv1d" in spec.name else 2.0) / np.sqrt(spec.shape[-1])
    dtype = {"BF16": ml_dtypes.bfloat16, "F32": np.float32}[spec.dtype]
    yield memoryview(values.astype(dtype).tobytes())


def rewrite(folder: Path, name: str, values: np.ndarray[Any, Any]) -> None:
    """Overwrite one stored tensor with bytes of the same size."""
    from truecast.checkpoint.source import open_checkpoint

    info = open_checkpoint(folder).tensors[name]
    data = values.tobytes()
    assert len(data) == info.nbytes
    with (folder / info.file).open("r+b") as file:
        file.seek(info.start)
        file.write(data)
