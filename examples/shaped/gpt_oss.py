"""A checkpoint shaped like gpt-oss: ``python -m examples.shaped.gpt_oss OUT [--full] [--sparse] [--layers N] ...``.

The experts of a layer are stacked in one tensor, gate and up rows interleaved. Shards are numbered from zero and cut by
size wherever that falls, so a bank's blocks and scales need not share a file. ``--full`` has the dimensions of
gpt-oss-20b; with ``--layers 36 --experts 128 --files 15`` those of gpt-oss-120b. Contents are made up.

Source: openai/gpt-oss, gpt_oss/torch; huggingface/transformers, models/gpt_oss and integrations/mxfp4.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from examples.shaped.auxiliary import CHAT_TEMPLATE, LICENSE, readme, to_json
from examples.shaped.command import run
from examples.shaped.contents import BIAS, CODES, NORM, SCALES, Spec, content
from examples.shaped.shards import Made, write_checkpoint
from truecast.layouts.mxfp4_gpt_oss import quantization_config


@dataclass(frozen=True, slots=True)
class GptOssShape:
    """Dimensions of the model; the defaults make a checkpoint of under a megabyte."""

    layers: int = 2
    experts: int = 4
    hidden: int = 96
    expert_width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 512
    files: int = 3


FULL = GptOssShape(
    layers=24, experts=32, hidden=2880, expert_width=2880, heads=64, kv_heads=8, head_dim=64, vocab=201088
)
"""gpt-oss-20b."""


def make(out: Path, *, shape: GptOssShape | None = None, seed: int = 0, sparse: bool = False) -> Made:
    """Make the checkpoint in ``out``. Raises: RefusedError if ``out`` is not empty."""
    shape = shape or GptOssShape()
    files = {
        "config.json": to_json(config(shape)),
        "generation_config.json": to_json({"eos_token_id": shape.vocab - 1, "pad_token_id": shape.vocab - 2}),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
        "LICENSE": LICENSE.encode(),
        "README.md": readme("gpt-oss", "gpt_oss"),
    }
    return write_checkpoint(
        out, shards(shape), files, metadata={"format": "pt"}, fill=partial(content, seed=seed), sparse=sparse
    )


def shards(shape: GptOssShape) -> dict[str, list[Spec]]:
    """Shard name -> its tensors: ``files`` shards of about the same size, numbered from zero."""
    specs = list(model_specs(shape))
    total = sum(spec.nbytes for spec in specs)
    cut: dict[int, list[Spec]] = {}
    position = 0
    for spec in specs:
        cut.setdefault(position * shape.files // total, []).append(spec)
        position += spec.nbytes
    last = len(cut) - 1
    return {f"model-{n:05d}-of-{last:05d}.safetensors": members for n, members in enumerate(cut.values())}


def model_specs(shape: GptOssShape) -> Iterator[Spec]:
    """All tensors, in the order of the model's modules."""
    yield Spec("model.embed_tokens.weight", "BF16", (shape.vocab, shape.hidden))
    for layer in range(shape.layers):
        yield from _attention(shape, f"model.layers.{layer}.")
        yield from _experts(shape, f"model.layers.{layer}.mlp.")
    yield Spec("model.norm.weight", "BF16", (shape.hidden,), NORM)
    yield Spec("lm_head.weight", "BF16", (shape.vocab, shape.hidden))


def _attention(shape: GptOssShape, prefix: str) -> Iterator[Spec]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Spec(f"{prefix}{norm}.weight", "BF16", (shape.hidden,), NORM)
    for name, rows, cols in (
        ("q_proj", queries, shape.hidden),
        ("k_proj", keys, shape.hidden),
        ("v_proj", keys, shape.hidden),
        ("o_proj", shape.hidden, queries),
    ):
        yield Spec(f"{prefix}self_attn.{name}.weight", "BF16", (rows, cols))
        yield Spec(f"{prefix}self_attn.{name}.bias", "BF16", (rows,), BIAS)
    yield Spec(f"{prefix}self_attn.sinks", "BF16", (shape.heads,), BIAS)


def _experts(shape: GptOssShape, prefix: str) -> Iterator[Spec]:
    yield Spec(f"{prefix}router.weight", "BF16", (shape.experts, shape.hidden))
    yield Spec(f"{prefix}router.bias", "BF16", (shape.experts,), BIAS)
    for name, rows, cols in (
        ("gate_up_proj", 2 * shape.expert_width, shape.hidden),
        ("down_proj", shape.hidden, shape.expert_width),
    ):
        bank = f"{prefix}experts.{name}"
        yield Spec(f"{bank}_blocks", "U8", (shape.experts, rows, cols // 32, 16), CODES)
        yield Spec(f"{bank}_scales", "U8", (shape.experts, rows, cols // 32), SCALES)
        yield Spec(f"{bank}_bias", "BF16", (shape.experts, rows), BIAS)


def config(shape: GptOssShape) -> dict[str, Any]:
    """``config.json``."""
    not_converted = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": shape.vocab - 1,
        "experts_per_token": min(4, shape.experts),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": shape.expert_width,
        "layer_types": [("sliding_attention", "full_attention")[i % 2] for i in range(shape.layers)],
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": shape.heads,
        "num_experts_per_tok": min(4, shape.experts),
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "num_local_experts": shape.experts,
        "output_router_logits": False,
        "pad_token_id": shape.vocab - 2,
        "quantization_config": quantization_config(not_converted, activations=False),
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": shape.vocab,
    }


if __name__ == "__main__":
    sys.exit(run("gpt_oss", make, GptOssShape(), FULL))
