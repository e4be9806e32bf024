"""nano-K3's dimensions and its config.json."""

from __future__ import annotations

from typing import Any

from examples.nano_k3.vocabulary import RANKS, SPECIAL_SLOTS
from examples.shaped.kimi_k3 import K3Shape
from examples.shaped.kimi_k3_files import config as shaped_config

SHAPE = K3Shape(
    layers=5,
    experts=16,
    hidden=1024,
    latent=256,
    expert_width=256,
    shared_experts=1,
    dense_width=512,
    heads=4,
    head_dim=128,
    q_lora=128,
    kv_lora=512,
    rope_dim=64,
    vocab=RANKS + SPECIAL_SLOTS,
    vision_layers=1,
    vision_hidden=64,
    vision_width=128,
    vision_attention=64,
    vision_grid=8,
)
"""KDA in layers 1 to 3, MLA in 4 and 5. The widths are what serving kernels ask for: hidden a multiple of 1024, heads of
128, a latent of 512 + 64. Four heads, so that tensor parallelism over two GPUs leaves two: with one head a GPU SGLang 0.5.17
reads the wrong values of KDA's output gate."""

TINY = K3Shape(
    layers=4,
    experts=8,
    hidden=128,
    latent=64,
    expert_width=64,
    shared_experts=1,
    dense_width=128,
    heads=2,
    head_dim=32,
    q_lora=32,
    kv_lora=64,
    rope_dim=16,
    vocab=RANKS + SPECIAL_SLOTS,
    vision_layers=1,
    vision_hidden=64,
    vision_width=128,
    vision_attention=64,
    vision_grid=8,
)
"""For trials on a CPU."""

ATTN_RES_BLOCK = 2
EXPERTS_PER_TOKEN = 4
POSITIONS = 4096


def config(shape: K3Shape) -> dict[str, Any]:
    """``config.json`` in Kimi-K3's form."""
    base = shape.vocab - SPECIAL_SLOTS
    document = shaped_config(shape, {"bos_token_id": base, "eos_token_id": base + 2, "pad_token_id": shape.vocab - 1})
    document["text_config"] |= {
        "attn_res_block_size": ATTN_RES_BLOCK,
        "max_position_embeddings": POSITIONS,
        "num_experts_per_token": EXPERTS_PER_TOKEN,
    }
    return document
