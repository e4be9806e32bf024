"""A checkpoint shaped like DeepSeek-V4: ``python -m examples.shaped.deepseek_v4 OUT [--full] [--sparse] ...``.

Routed experts are MXFP4 (I8 codes, F8_E8M0 scales), attention projections and shared experts FP8 with a power-of-two
scale per 128x128 block, both under the suffixes ``.weight`` and ``.scale``. The first layers route by token id (a table
``tid2eid``), the others by a scored gate with a bias. ``--full`` has the dimensions of DeepSeek-V4-Flash: 69,187
tensors and 159,609,485,896 bytes in 46 shards. Contents are made up.

Source: NVIDIA-NeMo/Automodel 36044ad3, components/models/deepseek_v4; huggingface/transformers, models/deepseek_v4.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from examples.shaped.auxiliary import LICENSE, readme, to_json
from examples.shaped.command import run
from examples.shaped.contents import BIAS, CODES, EXPERT_IDS, FP8, FP8_SCALES, NORM, SCALES, Spec, content
from examples.shaped.shards import Made, write_checkpoint


@dataclass(frozen=True, slots=True)
class V4Shape:
    """Dimensions of the model; the defaults make a checkpoint of a few megabytes with every kind of layer."""

    layers: int = 5
    experts: int = 8
    hidden: int = 256
    expert_width: int = 96
    heads: int = 4
    head_dim: int = 64
    rope_dim: int = 16
    q_lora: int = 128
    o_lora: int = 64
    o_groups: int = 2
    index_heads: int = 4
    index_dim: int = 32
    streams: int = 4
    hash_layers: int = 3
    active_experts: int = 2
    vocab: int = 512

    def compress_ratio(self, layer: int) -> int:
        """Tokens that one compressed key stands for, 0 for none: two plain layers, then 4 and 128 in turn."""
        return 0 if layer < 2 else 128 if layer % 2 else 4


FULL = V4Shape(
    layers=43,
    experts=256,
    hidden=4096,
    expert_width=2048,
    heads=64,
    head_dim=512,
    rope_dim=64,
    q_lora=1024,
    o_lora=1024,
    o_groups=8,
    index_heads=64,
    index_dim=128,
    active_experts=6,
    vocab=129280,
)
"""DeepSeek-V4-Flash."""

_FP8_BLOCK = 128


def make(out: Path, *, shape: V4Shape | None = None, seed: int = 0, sparse: bool = False) -> Made:
    """Make the checkpoint in ``out``. Raises: RefusedError if ``out`` is not empty."""
    shape = shape or V4Shape()
    files = {
        "config.json": to_json(config(shape)),
        "generation_config.json": to_json({"bos_token_id": 0, "eos_token_id": 1}),
        "LICENSE": LICENSE.encode(),
        "README.md": readme("DeepSeek-V4", "deepseek_v4"),
    }
    return write_checkpoint(out, shards(shape), files, metadata={}, fill=partial(content, seed=seed), sparse=sparse)


def shards(shape: V4Shape) -> dict[str, list[Spec]]:
    """Shard name -> its tensors: embedding, one layer a shard, head, then the module for multi-token prediction."""
    contents = [[Spec("embed.weight", "BF16", (shape.vocab, shape.hidden))]]
    contents += [list(layer_specs(shape, layer)) for layer in range(shape.layers)]
    contents += [list(head_specs(shape)), list(mtp_specs(shape))]
    total = len(contents)
    return {f"model-{n:05d}-of-{total:05d}.safetensors": specs for n, specs in enumerate(contents, 1)}


def layer_specs(shape: V4Shape, layer: int) -> Iterator[Spec]:
    """Tensors of one decoder layer (0-based)."""
    prefix, ratio = f"layers.{layer}.", shape.compress_ratio(layer)
    yield from _block(shape, prefix, hashed=layer < shape.hash_layers)
    if ratio:
        yield from _compressor(shape, f"{prefix}attn.compressor.", ratio, shape.head_dim)
    if ratio == 4:
        indexer = f"{prefix}attn.indexer."
        yield from _fp8(f"{indexer}wq_b", shape.index_heads * shape.index_dim, shape.q_lora)
        yield Spec(f"{indexer}weights_proj.weight", "BF16", (shape.index_heads, shape.hidden))
        yield from _compressor(shape, f"{indexer}compressor.", ratio, shape.index_dim)


def head_specs(shape: V4Shape) -> Iterator[Spec]:
    """Output head, final norm, and the mixer that joins the residual streams."""
    yield Spec("head.weight", "BF16", (shape.vocab, shape.hidden))
    yield Spec("norm.weight", "BF16", (shape.hidden,), NORM)
    yield from _stream_head(shape, "")


def mtp_specs(shape: V4Shape) -> Iterator[Spec]:
    """The module for multi-token prediction: a plain layer with projections of its own."""
    yield from _block(shape, "mtp.0.", hashed=False)
    for name in ("e_proj", "h_proj"):
        yield from _fp8(f"mtp.0.{name}", shape.hidden, shape.hidden)
    for name in ("enorm", "hnorm", "norm"):
        yield Spec(f"mtp.0.{name}.weight", "BF16", (shape.hidden,), NORM)
    yield from _stream_head(shape, "mtp.0.")


def _fp8(module: str, rows: int, cols: int) -> Iterator[Spec]:
    yield Spec(f"{module}.weight", "F8_E4M3", (rows, cols), FP8)
    yield Spec(f"{module}.scale", "F8_E8M0", (-(-rows // _FP8_BLOCK), -(-cols // _FP8_BLOCK)), FP8_SCALES)


def _block(shape: V4Shape, prefix: str, *, hashed: bool) -> Iterator[Spec]:
    mixes = (2 + shape.streams) * shape.streams
    for part in ("attn", "ffn"):
        yield Spec(f"{prefix}hc_{part}_fn", "F32", (mixes, shape.streams * shape.hidden))
        yield Spec(f"{prefix}hc_{part}_base", "F32", (mixes,), BIAS)
        yield Spec(f"{prefix}hc_{part}_scale", "F32", (3,), NORM)
        yield Spec(f"{prefix}{part}_norm.weight", "BF16", (shape.hidden,), NORM)
    yield from _attention(shape, f"{prefix}attn.")
    yield from _moe(shape, f"{prefix}ffn.", hashed=hashed)


def _attention(shape: V4Shape, prefix: str) -> Iterator[Spec]:
    inner, grouped = shape.heads * shape.head_dim, shape.o_groups * shape.o_lora
    yield Spec(f"{prefix}attn_sink", "F32", (shape.heads,), BIAS)
    yield Spec(f"{prefix}q_norm.weight", "BF16", (shape.q_lora,), NORM)
    yield Spec(f"{prefix}kv_norm.weight", "BF16", (shape.head_dim,), NORM)
    yield from _fp8(f"{prefix}wq_a", shape.q_lora, shape.hidden)
    yield from _fp8(f"{prefix}wq_b", inner, shape.q_lora)
    yield from _fp8(f"{prefix}wkv", shape.head_dim, shape.hidden)
    yield from _fp8(f"{prefix}wo_a", grouped, inner // shape.o_groups)
    yield from _fp8(f"{prefix}wo_b", shape.hidden, grouped)


def _compressor(shape: V4Shape, prefix: str, ratio: int, dim: int) -> Iterator[Spec]:
    width = dim * (2 if ratio == 4 else 1)  # windows of the finer compressor overlap
    yield Spec(f"{prefix}ape", "F32", (ratio, width))
    yield Spec(f"{prefix}norm.weight", "BF16", (dim,), NORM)
    for name in ("wkv", "wgate"):
        yield Spec(f"{prefix}{name}.weight", "BF16", (width, shape.hidden))


def _moe(shape: V4Shape, prefix: str, *, hashed: bool) -> Iterator[Spec]:
    hidden, width = shape.hidden, shape.expert_width
    yield Spec(f"{prefix}gate.weight", "BF16", (shape.experts, hidden))
    if hashed:
        yield Spec(f"{prefix}gate.tid2eid", "I64", (shape.vocab, shape.active_experts), EXPERT_IDS, shape.experts)
    else:
        yield Spec(f"{prefix}gate.bias", "F32", (shape.experts,), BIAS)
    matrices = (("w1", width, hidden), ("w2", hidden, width), ("w3", width, hidden))
    for name, rows, cols in matrices:
        yield from _fp8(f"{prefix}shared_experts.{name}", rows, cols)
    for expert in range(shape.experts):
        for name, rows, cols in matrices:
            yield Spec(f"{prefix}experts.{expert}.{name}.weight", "I8", (rows, cols // 2), CODES)
            yield Spec(f"{prefix}experts.{expert}.{name}.scale", "F8_E8M0", (rows, cols // 32), SCALES)


def _stream_head(shape: V4Shape, prefix: str) -> Iterator[Spec]:
    yield Spec(f"{prefix}hc_head_fn", "F32", (shape.streams, shape.streams * shape.hidden))
    yield Spec(f"{prefix}hc_head_base", "F32", (shape.streams,), BIAS)
    yield Spec(f"{prefix}hc_head_scale", "F32", (1,), NORM)


def config(shape: V4Shape) -> dict[str, Any]:
    """``config.json``; ``compress_ratios`` has a last entry for the multi-token prediction module."""
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "compress_ratios": [shape.compress_ratio(layer) for layer in range(shape.layers)] + [0],
        "compress_rope_theta": 160000,
        "eos_token_id": 1,
        "expert_dtype": "fp4",
        "hc_eps": 1e-06,
        "hc_mult": shape.streams,
        "hc_sinkhorn_iters": 20,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "index_head_dim": shape.index_dim,
        "index_n_heads": shape.index_heads,
        "index_topk": 512,
        "initializer_range": 0.02,
        "max_position_embeddings": 1048576,
        "model_type": "deepseek_v4",
        "moe_intermediate_size": shape.expert_width,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": shape.heads,
        "num_experts_per_tok": shape.active_experts,
        "num_hash_layers": shape.hash_layers,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 1,
        "o_groups": shape.o_groups,
        "o_lora_rank": shape.o_lora,
        "q_lora_rank": shape.q_lora,
        "qk_rope_head_dim": shape.rope_dim,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "sliding_window": 128,
        "swiglu_limit": 10.0,
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocab,
    }


if __name__ == "__main__":
    sys.exit(run("deepseek_v4", make, V4Shape(), FULL))
