"""A small checkpoint shaped like Kimi-K3 in W4AFP8, as truecast converts it: INT4 experts, attention in FP8 blocks.

The activation scales are put there afterwards: truecast writes 1.0, which is also what a parameter holds that no loader
has touched.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from examples.shaped import kimi_k3
from truecast.convert import Target, convert

SHAPE = kimi_k3.K3Shape(
    layers=4, experts=4, hidden=256, latent=512, expert_width=256, dense_width=512, heads=4, head_dim=128, q_lora=128,
    kv_lora=128, rope_dim=64,
)  # fmt: skip
"""Every FP8 projection and every expert can be split in four resp. two, as whole tiles and groups."""

INPUT_SCALES = {"w1": 0.375, "w2": 0.5, "w3": 0.375}
"""Calibrated by nobody; twins share theirs, and BF16 holds them."""

Tensors = dict[str, torch.Tensor]


def make(folder: Path) -> Path:
    """Write the checkpoint into ``folder``."""
    source = folder.parent / "mxfp4"
    kimi_k3.make(source, shape=SHAPE)
    convert(source, folder, Target("w4afp8"))
    for shard in sorted(folder.glob("*.safetensors")):
        tensors = load_file(shard)
        scales = {name: name.split(".")[-2] for name in tensors if name.endswith(".input_scale")}
        assert all(tensors[name].item() == 1 for name in scales)
        with safe_open(shard, "pt") as file:
            metadata = file.metadata()
        if scales:
            save_file(tensors | {n: torch.tensor(INPUT_SCALES[leaf]) for n, leaf in scales.items()}, shard, metadata)
    return folder


def load(folder: Path) -> Tensors:
    """Every tensor of the checkpoint."""
    return {name: tensor for shard in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(shard).items()}
