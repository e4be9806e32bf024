"""A random DSpark draft model for nano-K3: two layers of Qwen3's form that read the target's hidden states.

The form that SGLang 0.5.17 reads (models/dspark.py, models/dflash.py): no embedding and no
head, which it takes from the target; ``fc`` over the target layers' hidden states; a Markov head of low rank over the last
token. ``python -m benchmarks.sglang.draft OUT``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.sglang.runs import GAMMA

HIDDEN, VOCABULARY, HEADS, KV_HEADS, HEAD, INNER, LAYERS, RANK = 1024, 2048, 8, 2, 128, 1024, 2, 64
TARGET_LAYERS = (1, 2, 3)
MASK = 2046


def config(gamma: int = GAMMA) -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCABULARY,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1792,
        "eos_token_id": 1794,
        "num_target_layers": 5,
        "block_size": gamma,
        "dflash_config": {"target_layer_ids": list(TARGET_LAYERS), "mask_token_id": MASK, "block_size": gamma},
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": False,
    }


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights by name, BF16."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * columns**-0.5).bfloat16()

    out = {"fc.weight": matrix(HIDDEN, len(TARGET_LAYERS) * HIDDEN)}
    for name in ("hidden_norm", "norm"):
        out[f"{name}.weight"] = torch.ones(HIDDEN).bfloat16()
    for i in range(LAYERS):
        at = f"layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[f"{at}.{name}.weight"] = torch.ones(HIDDEN).bfloat16()
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            out[f"{at}.self_attn.{name}_proj.weight"] = matrix(heads * HEAD, HIDDEN)
        out[f"{at}.self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD)
        for name in ("q_norm", "k_norm"):
            out[f"{at}.self_attn.{name}.weight"] = torch.ones(HEAD).bfloat16()
        for name in ("gate_proj", "up_proj"):
            out[f"{at}.mlp.{name}.weight"] = matrix(INNER, HIDDEN)
        out[f"{at}.mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
    out["markov_head.markov_w1.weight"] = matrix(VOCABULARY, RANK)
    out["markov_head.markov_w2.weight"] = matrix(VOCABULARY, RANK)
    return out


def make(out: Path, gamma: int = GAMMA) -> None:
    """Write the checkpoint."""
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config(gamma), indent=1) + "\n")
    save_file(tensors(), out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    make(parser.parse_args().out)
