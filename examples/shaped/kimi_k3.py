"""A checkpoint shaped like Kimi-K3: ``python -m examples.shaped.kimi_k3 OUT [--full] [--sparse] [--layers N] ...``.

Names, dtypes, order in the shards, shard and file names are those of the released checkpoint; with ``--full`` the
dimensions too: 497,220 tensors and 1,560,860,324,864 bytes, for which ``--sparse`` writes headers only. Every file then
has the released size to the byte, headers and index included. ``--full --layers 2 --experts 256`` makes a benchmark
shard of true matrices. Contents are made up.

Source: public copies of the small files of moonshotai/Kimi-K3 and listings of its headers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from examples.shaped.command import run
from examples.shaped.contents import A_LOG, BIAS, CODES, NORM, SCALES, Spec, content
from examples.shaped.kimi_k3_files import small_files
from examples.shaped.shards import Made, write_checkpoint


@dataclass(frozen=True, slots=True)
class K3Shape:
    """Dimensions of the model; the defaults make a checkpoint of a few megabytes with every kind of layer."""

    layers: int = 5
    experts: int = 8
    hidden: int = 256
    latent: int = 128
    expert_width: int = 96
    shared_experts: int = 2
    dense_width: int = 512
    heads: int = 3
    head_dim: int = 32
    q_lora: int = 96
    kv_lora: int = 64
    rope_dim: int = 16
    vocab: int = 512
    vision_layers: int = 2
    vision_hidden: int = 64
    vision_width: int = 128
    vision_attention: int = 96
    vision_grid: int = 8

    def is_mla(self, layer: int) -> bool:
        """Every fourth layer and the last one (0-based) have MLA, the others KDA."""
        return (layer + 1) % 4 == 0 or layer + 1 == self.layers


FULL = K3Shape(
    layers=93,
    experts=896,
    hidden=7168,
    latent=3584,
    expert_width=3072,
    dense_width=33792,
    heads=96,
    head_dim=128,
    q_lora=1536,
    kv_lora=512,
    rope_dim=64,
    vocab=163840,
    vision_layers=27,
    vision_hidden=1024,
    vision_width=4096,
    vision_attention=1536,
    vision_grid=64,
)
"""The released model."""

_TEXT = "language_model."


def make(out: Path, *, shape: K3Shape | None = None, seed: int = 0, sparse: bool = False) -> Made:
    """Make the checkpoint in ``out``. Raises: RefusedError if ``out`` is not empty."""
    shape = shape or K3Shape()
    return write_checkpoint(
        out, shards(shape), small_files(shape), metadata={}, fill=partial(content, seed=seed), sparse=sparse
    )


def shards(shape: K3Shape) -> dict[str, list[Spec]]:
    """Shard name -> its tensors: one decoder layer a shard, then embedding and head, vision tower, projector."""
    contents = [list(layer_specs(shape, layer)) for layer in range(shape.layers)]
    contents += [list(top_specs(shape)), list(vision_specs(shape)), list(projector_specs(shape))]
    total = len(contents)
    return {f"model-{n:05d}-of-{total:06d}.safetensors": specs for n, specs in enumerate(contents, 1)}


def layer_specs(shape: K3Shape, layer: int) -> Iterator[Spec]:
    """Tensors of one decoder layer (0-based)."""
    prefix, hidden = f"{_TEXT}model.layers.{layer}.", shape.hidden
    for norm in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
        yield Spec(f"{prefix}{norm}.weight", "BF16", (hidden,), NORM)
    for projection in ("self_attention_res_proj", "mlp_res_proj"):
        yield Spec(f"{prefix}{projection}.weight", "BF16", (1, hidden))
    yield from (_mla if shape.is_mla(layer) else _kda)(shape, f"{prefix}self_attn.")
    if layer == 0:
        yield from _mlp(f"{prefix}mlp.", hidden, shape.dense_width)
    else:
        yield from _moe(shape, f"{prefix}block_sparse_moe.")


def _mlp(prefix: str, hidden: int, width: int) -> Iterator[Spec]:
    for name in ("gate_proj", "up_proj"):
        yield Spec(f"{prefix}{name}.weight", "BF16", (width, hidden))
    yield Spec(f"{prefix}down_proj.weight", "BF16", (hidden, width))


def _kda(shape: K3Shape, prefix: str) -> Iterator[Spec]:
    inner, hidden = shape.heads * shape.head_dim, shape.hidden
    for name in ("q_proj", "k_proj", "v_proj", "g_proj"):
        yield Spec(f"{prefix}{name}.weight", "BF16", (inner, hidden))
    yield Spec(f"{prefix}o_proj.weight", "BF16", (hidden, inner))
    for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
        yield Spec(f"{prefix}{name}.weight", "F32", (inner, 1, 4))
    yield Spec(f"{prefix}f_a_proj.weight", "BF16", (shape.head_dim, hidden))
    yield Spec(f"{prefix}f_b_proj.weight", "BF16", (inner, shape.head_dim))
    yield Spec(f"{prefix}b_proj.weight", "BF16", (shape.heads, hidden))
    # stored padded to a multiple of 128 heads; only the first `heads` values mean something, the rest are zeros
    yield Spec(f"{prefix}A_log", "F32", (-(-shape.heads // 128) * 128,), A_LOG, shape.heads)
    yield Spec(f"{prefix}dt_bias", "F32", (inner,), BIAS)
    yield Spec(f"{prefix}o_norm.weight", "F32", (shape.head_dim,), NORM)


def _mla(shape: K3Shape, prefix: str) -> Iterator[Spec]:
    inner, hidden = shape.heads * shape.head_dim, shape.hidden
    yield Spec(f"{prefix}q_a_proj.weight", "BF16", (shape.q_lora, hidden))
    yield Spec(f"{prefix}q_a_layernorm.weight", "BF16", (shape.q_lora,), NORM)
    yield Spec(f"{prefix}q_b_proj.weight", "BF16", (inner + shape.heads * shape.rope_dim, shape.q_lora))
    yield Spec(f"{prefix}kv_a_proj_with_mqa.weight", "BF16", (shape.kv_lora + shape.rope_dim, hidden))
    yield Spec(f"{prefix}kv_a_layernorm.weight", "BF16", (shape.kv_lora,), NORM)
    yield Spec(f"{prefix}kv_b_proj.weight", "BF16", (2 * inner, shape.kv_lora))
    yield Spec(f"{prefix}g_proj.weight", "BF16", (inner, hidden))
    yield Spec(f"{prefix}o_proj.weight", "BF16", (hidden, inner))


def _moe(shape: K3Shape, prefix: str) -> Iterator[Spec]:
    hidden, latent, width = shape.hidden, shape.latent, shape.expert_width
    yield Spec(f"{prefix}gate.weight", "BF16", (shape.experts, hidden))
    yield Spec(f"{prefix}gate.e_score_correction_bias", "F32", (shape.experts,), BIAS)
    yield Spec(f"{prefix}routed_expert_down_proj.weight", "BF16", (latent, hidden))
    yield Spec(f"{prefix}routed_expert_norm.weight", "BF16", (latent,), NORM)
    yield Spec(f"{prefix}routed_expert_up_proj.weight", "BF16", (hidden, latent))
    yield from _mlp(f"{prefix}shared_experts.", hidden, shape.shared_experts * width)
    for expert in range(shape.experts):
        for name, rows, cols in (("w1", width, latent), ("w2", latent, width), ("w3", width, latent)):
            matrix = f"{prefix}experts.{expert}.{name}"
            yield Spec(f"{matrix}.weight_packed", "U8", (rows, cols // 2), CODES)
            yield Spec(f"{matrix}.weight_scale", "U8", (rows, cols // 32), SCALES)


def top_specs(shape: K3Shape) -> Iterator[Spec]:
    """Tensors of the text model outside the layers."""
    yield Spec(f"{_TEXT}model.embed_tokens.weight", "BF16", (shape.vocab, shape.hidden))
    yield Spec(f"{_TEXT}lm_head.weight", "BF16", (shape.vocab, shape.hidden))
    yield Spec(f"{_TEXT}model.norm.weight", "BF16", (shape.hidden,), NORM)
    yield Spec(f"{_TEXT}model.output_attn_res_norm.weight", "BF16", (shape.hidden,), NORM)
    yield Spec(f"{_TEXT}model.output_attn_res_proj.weight", "BF16", (1, shape.hidden))


def vision_specs(shape: K3Shape) -> Iterator[Spec]:
    """Tensors of the vision tower."""
    hidden, grid, tower = shape.vision_hidden, shape.vision_grid, "vision_tower."
    yield Spec(f"{tower}patch_embed.proj.weight", "BF16", (hidden, 3, 14, 14))
    yield Spec(f"{tower}patch_embed.pos_emb.weight", "BF16", (grid, grid, hidden))
    for layer in range(shape.vision_layers):
        block = f"{tower}encoder.blocks.{layer}."
        yield Spec(f"{block}wqkv.weight", "BF16", (3 * shape.vision_attention, hidden))
        yield Spec(f"{block}wo.weight", "BF16", (hidden, shape.vision_attention))
        yield Spec(f"{block}mlp.fc0.weight", "BF16", (shape.vision_width, hidden))
        yield Spec(f"{block}mlp.fc1.weight", "BF16", (hidden, shape.vision_width))
        yield Spec(f"{block}norm0.weight", "BF16", (hidden,), NORM)
        yield Spec(f"{block}norm1.weight", "BF16", (hidden,), NORM)
    yield Spec(f"{tower}encoder.final_layernorm.weight", "BF16", (hidden,), NORM)


def projector_specs(shape: K3Shape) -> Iterator[Spec]:
    """Tensors of the projector from vision to text; it takes 2 x 2 patches at once."""
    merged = 4 * shape.vision_hidden
    yield Spec("mm_projector.proj.0.weight", "BF16", (merged, merged))
    yield Spec("mm_projector.proj.2.weight", "BF16", (shape.hidden, merged))
    yield Spec("mm_projector.post_norm.weight", "BF16", (shape.hidden,), NORM)


if __name__ == "__main__":
    sys.exit(run("kimi_k3", make, K3Shape(), FULL))
