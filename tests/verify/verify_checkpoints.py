"""Small source checkpoints of all three MXFP4 layouts, with what real ones rarely have: wide blocks, zeros, minus zero."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from truecast.checkpoint.header import encode_header, read_header
from truecast.checkpoint.index import encode_index

U8 = NDArray[np.uint8]
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Name -> dtype, shape, bytes."""


def write_checkpoint(folder: Path, shards: list[Tensors], config: dict[str, object]) -> Path:
    """Write shards, index, config and two auxiliary files."""
    folder.mkdir(parents=True)
    infos = {}
    for number, tensors in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        header = encode_header(((n, d, s) for n, (d, s, _) in tensors.items()), {"format": "pt"})
        data = header + b"".join(b for _, _, b in tensors.values())
        (folder / name).write_bytes(data)
        infos |= read_header(lambda a, b, data=data: data[a:b], name, len(data))[0]
    (folder / "model.safetensors.index.json").write_bytes(encode_index(infos))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"vocab": {"a": 0}}\n')
    (folder / "README.md").write_text("# a model\n")
    return folder


def codes_of(rng: np.random.Generator, rows: int, cols: int) -> U8:
    """Packed codes ``[rows, cols/2]``: every code occurs, minus zero too; the last block of the last row is all zero."""
    packed = rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
    packed[-1, -16:] = 0x80
    return packed


def scales_of(rng: np.random.Generator, rows: int, cols: int) -> U8:
    """E8M0 bytes ``[rows, cols/32]`` within the window; the all-zero block's lies far outside it."""
    scales = rng.integers(114, 124, (rows, cols // 32), dtype=np.uint8)
    scales[-1, -1] = 200
    return scales


def plain(rng: np.random.Generator, dtype: str, *shape: int) -> tuple[str, tuple[int, ...], bytes]:
    width = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1}[dtype]
    return dtype, shape, rng.integers(0, 120, int(np.prod(shape)) * width, dtype=np.uint8).tobytes()


def kimi_k3(
    folder: Path, seed: int = 0, rows: int = 32, cols: int = 64, edit: Callable[[U8, U8], None] | None = None
) -> Path:
    """Two shards with experts, one with plain tensors only. ``edit`` changes w1 of expert 0 (codes, scales)."""
    rng = np.random.default_rng(seed)
    shards: list[Tensors] = [{}, {}, {}]
    for expert in range(2):
        for leaf, (r, c) in {"w1": (rows, cols), "w3": (rows, cols), "w2": (cols, rows)}.items():
            codes, scales = codes_of(rng, r, c), scales_of(rng, r, c)
            if edit and (expert, leaf) == (0, "w1"):
                edit(codes, scales)
            name = f"language_model.model.layers.1.block_sparse_moe.experts.{expert}.{leaf}"
            shards[expert][name + ".weight_packed"] = "U8", codes.shape, codes.tobytes()
            shards[expert][name + ".weight_scale"] = "U8", scales.shape, scales.tobytes()
        shards[expert][f"language_model.model.layers.{expert}.input_layernorm.weight"] = plain(rng, "BF16", 64)
    shards[1]["language_model.model.layers.1.self_attn.q_proj.weight"] = plain(rng, "BF16", 16, 64)
    shards[2]["language_model.lm_head.weight"] = plain(rng, "BF16", 48, 64)
    shards[2]["language_model.model.norm.weight"] = plain(rng, "F32", 64)
    return write_checkpoint(folder, shards, {"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear"}})


def gpt_oss(folder: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    bank, experts, inner, hidden = "model.layers.0.mlp.experts", 3, 32, 64
    shard: Tensors = {"model.embed_tokens.weight": plain(rng, "BF16", 8, hidden)}
    for projection, rows, cols in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        codes = np.stack([codes_of(rng, rows, cols) for _ in range(experts)])
        scales = np.stack([scales_of(rng, rows, cols) for _ in range(experts)])
        stem = f"{bank}.{projection}"
        shard[stem + "_bias"] = plain(rng, "BF16", experts, rows)
        shard[stem + "_blocks"] = "U8", (experts, rows, cols // 32, 16), codes.tobytes()
        shard[stem + "_scales"] = "U8", scales.shape, scales.tobytes()
    shard["model.norm.weight"] = plain(rng, "BF16", hidden)
    return write_checkpoint(folder, [shard], {"model_type": "gpt_oss"})


def deepseek_v4(folder: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    shards: list[Tensors] = [{}, {}]
    for number, bank in enumerate(("layers.0.ffn.experts", "mtp.0.ffn.experts")):
        for expert in range(2):
            for leaf, (r, c) in {"w1": (32, 64), "w2": (64, 32), "w3": (32, 64)}.items():
                codes, scales = codes_of(rng, r, c), scales_of(rng, r, c)
                name = f"{bank}.{expert}.{leaf}"
                shards[number][name + ".weight"] = "I8", codes.shape, codes.tobytes()
                shards[number][name + ".scale"] = "F8_E8M0", scales.shape, scales.tobytes()
    shards[0]["layers.0.attn.wkv.weight"] = plain(rng, "F8_E4M3", 128, 128)
    shards[0]["layers.0.attn.wkv.scale"] = plain(rng, "F8_E8M0", 1, 1)
    config = {
        "model_type": "deepseek_v4",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    return write_checkpoint(folder, shards, config)


SOURCES = {"kimi_k3": kimi_k3, "gpt_oss": gpt_oss, "deepseek_v4": deepseek_v4}


def load_shard(path: Path) -> Tensors:
    """All tensors of a shard."""
    raw = path.read_bytes()
    infos, _ = read_header(lambda a, b: raw[a:b], path.name, len(raw))
    return {n: (t.dtype, t.shape, raw[t.start : t.end]) for n, t in infos.items()}


def rewrite(out: Path, edit: Callable[[Tensors], None]) -> None:
    """Change the tensors of every shard of an output, and write header and index to match; the manifest goes."""
    (out / "truecast.json").unlink(missing_ok=True)
    rewrite_shards(out, edit)


def rewrite_shards(out: Path, edit: Callable[[Tensors], None]) -> None:
    """The same, and the manifest stays as it is."""
    infos = {}
    for path in sorted(out.glob("*.safetensors")):
        tensors = load_shard(path)
        edit(tensors)
        header = encode_header(((n, d, s) for n, (d, s, _) in tensors.items()), {"format": "pt"})
        data = header + b"".join(b for _, _, b in tensors.values())
        path.write_bytes(data)
        infos |= read_header(lambda a, b, data=data: data[a:b], path.name, len(data))[0]
    (out / "model.safetensors.index.json").write_bytes(encode_index(infos))


def poke(out: Path, tensor: str, offset: int, data: bytes) -> None:
    """Overwrite bytes of one tensor in place; nothing else is touched."""
    for path in out.glob("*.safetensors"):
        raw = bytearray(path.read_bytes())
        infos, _ = read_header(lambda a, b, raw=raw: bytes(raw[a:b]), path.name, len(raw))
        if tensor in infos:
            start = infos[tensor].start + offset
            assert start + len(data) <= infos[tensor].end
            raw[start : start + len(data)] = data
            path.write_bytes(raw)
            return
    raise KeyError(tensor)
