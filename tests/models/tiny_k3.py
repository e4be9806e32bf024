"""A Kimi-K3 of random weights, small enough for any test: two layers, KDA and MLA, and a working tokenizer."""

from __future__ import annotations

from pathlib import Path

from examples.shaped.kimi_k3 import K3Shape, make
from tests.models.k3_vocabulary import VOCABULARY, write_tokenizer

SHAPE = K3Shape(
    layers=2, experts=4, hidden=64, latent=64, expert_width=32, dense_width=64, heads=2, head_dim=32, q_lora=32,
    kv_lora=32, vocab=VOCABULARY, vision_layers=1, vision_hidden=16, vision_width=32, vision_attention=24, vision_grid=2,
)  # fmt: skip


def make_tiny_k3(folder: Path) -> Path:
    """Make it in ``folder``; returns the folder."""
    make(folder, shape=SHAPE)
    write_tokenizer(folder)
    return folder
