"""Small checkpoints for the tests of `check`: sound ones, which a test then spoils."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from truecast.checkpoint.header import TensorInfo, encode_header
from truecast.checkpoint.index import INDEX_FILE, encode_index
from truecast.checkpoint.writer import write_file
from truecast.layouts import LAYOUTS
from truecast.layouts.nvfp4_modelopt import hf_quant_config
from truecast.verify.check import CheckReport, check

ROWS, COLS = 8, 64
SUFFIXES = {
    "nvfp4-modelopt": (".weight", ".weight_scale", ".weight_scale_2", ".input_scale"),
    "nvfp4-compressed-tensors": (".weight_packed", ".weight_scale", ".weight_global_scale", ".input_global_scale"),
    "mxfp4-compressed-tensors": (".weight_packed", ".weight_scale", "", ""),
    "mxfp4-deepseek": (".weight", ".scale", "", ""),
}
DTYPES = {
    "U8": np.uint8,
    "I8": np.int8,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
    "BF16": np.uint16,
    "F32": np.float32,
    "I32": np.int32,
}


@dataclass
class Made:
    """A checkpoint in the making: tensors by shard, config files, then `write` and `check`."""

    folder: Path
    shards: list[dict[str, tuple[str, np.ndarray]]] = field(default_factory=lambda: [{}, {}])
    config: dict[str, Any] = field(default_factory=dict)
    hf_quant: dict[str, Any] | None = None
    metadata: dict[str, str] = field(default_factory=lambda: {"format": "pt"})

    def add(self, name: str, dtype: str, array: np.ndarray, shard: int = 0) -> None:
        self.shards[shard][name] = (dtype, array)

    def array(self, name: str) -> np.ndarray:
        return next(shard[name][1] for shard in self.shards if name in shard)

    def drop(self, pattern: str) -> None:
        for shard in self.shards:
            for name in [n for n in shard if re.search(pattern, n)]:
                del shard[name]

    def plain(self, module: str, rows: int = 16, cols: int = 32, shard: int = 0) -> None:
        self.add(module + ".weight", "BF16", np.full((rows, cols), 0x3F80, np.uint16), shard)

    def packed(self, module: str, layout: str, shard: int = 0, *, input_scale: bool = False, seed: int = 0) -> None:
        rng = np.random.default_rng([seed, *module.encode()])
        codes, scale, global_scale, activation = SUFFIXES[layout]
        data = rng.integers(0, 256, (ROWS, COLS // 2), dtype=np.uint8)
        nvfp4 = layout.startswith("nvfp4")
        low, high = (0x40, 0x70) if nvfp4 else (110, 125)
        scales = rng.integers(low, high, (ROWS, COLS // (16 if nvfp4 else 32)), dtype=np.uint8)
        deepseek = layout == "mxfp4-deepseek"
        self.add(module + codes, "I8" if deepseek else "U8", data.view(np.int8) if deepseek else data, shard)
        self.add(module + scale, "F8_E4M3" if nvfp4 else "F8_E8M0" if deepseek else "U8", scales, shard)
        if not nvfp4:
            return
        shape, value = ((), 2.0**-12) if layout == "nvfp4-modelopt" else ((1,), 2.0**12)
        self.add(module + global_scale, "F32", np.full(shape, value, np.float32), shard)
        if input_scale:
            self.add(module + activation, "F32", np.ones(shape, np.float32), shard)

    def write(self) -> Path:
        """Write shards, index and config files."""
        written: dict[str, TensorInfo] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, shard in enumerate(self.shards):
            file = f"model-{number + 1:05d}-of-{len(self.shards):05d}.safetensors"
            ordered = sorted(shard.items(), key=lambda item: -DTYPES[item[1][0]]().itemsize)  # wide dtypes first
            header = encode_header([(n, d, a.shape) for n, (d, a) in ordered], self.metadata)
            body = b"".join(np.ascontiguousarray(a).tobytes() for _, (_, a) in ordered)
            write_file(self.folder / file, header + body)
            start = len(header)
            for name, (dtype, array) in ordered:
                written[name] = TensorInfo(name, dtype, array.shape, file, start, start + array.nbytes)
                start += array.nbytes
        write_file(self.folder / INDEX_FILE, encode_index(written))
        if self.config:
            write_file(self.folder / "config.json", json.dumps(self.config).encode())
        if self.hf_quant:
            write_file(self.folder / "hf_quant_config.json", json.dumps(self.hf_quant).encode())
        return self.folder

    def check(self) -> CheckReport:
        return check(self.write())

    @property
    def block(self) -> dict[str, Any]:
        block: dict[str, Any] = self.config["quantization_config"]
        return block

    def exclude(self, patterns: list[str]) -> None:
        """Set the exclude list, wherever it stands."""
        for key in ("ignore", "exclude_modules"):
            if key in self.block:
                self.block[key] = list(patterns)
        if self.hf_quant:
            self.hf_quant["quantization"]["exclude_modules"] = list(patterns)


def edit_index(folder: Path, edit: Any) -> None:
    """Rewrite the index through a function that changes it in place."""
    path = folder / INDEX_FILE
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))


GLOBS = ["*self_attn*", "*.mlp.gate", "*embed_tokens*", "*lm_head*"]
REGEXES = ["re:.*self_attn.*", r"re:.*\.mlp\.gate$", "re:.*lm_head$"]
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def moe(folder: Path, layout: str = "nvfp4-modelopt", *, experts: int = 3, input_scale: bool = False) -> Made:
    """A two-layer mixture of experts of no known family, one layer a shard."""
    made = Made(folder)
    made.plain("model.embed_tokens", shard=0)
    for layer in range(2):
        for leaf in ATTENTION:
            made.plain(f"model.layers.{layer}.self_attn.{leaf}", shard=layer)
        made.plain(f"model.layers.{layer}.mlp.gate", shard=layer)
        norm = np.full(32, 0x3F80, np.uint16)
        made.add(f"model.layers.{layer}.input_layernorm.weight", "BF16", norm, layer)
        for expert in range(experts):
            for leaf in ("gate_proj", "up_proj", "down_proj"):
                module = f"model.layers.{layer}.mlp.experts.{expert}.{leaf}"
                made.packed(module, layout, layer, input_scale=input_scale)
    made.plain("lm_head", shard=1)
    patterns = REGEXES if LAYOUTS[layout].DIALECT == "compressed-tensors" else GLOBS
    block = LAYOUTS[layout].quantization_config(patterns, input_scale)
    made.config = {"model_type": "tiny_moe", "quantization_config": block}
    if LAYOUTS[layout].DIALECT == "modelopt":
        made.hf_quant = copy.deepcopy(hf_quant_config(block, "0"))
    return made


K3_IGNORE = [
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    "re:.*lm_head.*",
    "re:.*vision_tower.*",
    "re:.*mm_projector.*",
]
"""The list that moonshotai/Kimi-K3 was published with."""


def kimi(folder: Path, layout: str = "mxfp4-compressed-tensors") -> Made:
    """A miniature of Kimi-K3: a dense KDA layer, an MoE MLA layer, the vision tower."""
    made = Made(folder)
    model = "language_model.model"
    made.plain(f"{model}.embed_tokens")
    made.plain("language_model.lm_head")
    made.plain(f"{model}.output_attn_res_proj", rows=1)
    made.plain("vision_tower.encoder.blocks.0.wqkv")
    for part in (0, 2):
        made.plain(f"mm_projector.proj.{part}")
    kda = ("q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "f_b_proj", "b_proj", "o_proj")
    mla = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "g_proj", "o_proj")
    for layer, leaves in enumerate((kda, mla)):
        for leaf in leaves:
            made.plain(f"{model}.layers.{layer}.self_attn.{leaf}", shard=layer)
        for leaf in ("self_attention_res_proj", "mlp_res_proj"):
            made.plain(f"{model}.layers.{layer}.{leaf}", rows=1, shard=layer)
    for leaf in ("gate_proj", "up_proj", "down_proj"):
        made.plain(f"{model}.layers.0.mlp.{leaf}")
        made.plain(f"{model}.layers.1.block_sparse_moe.shared_experts.{leaf}", shard=1)
    for leaf in ("gate", "routed_expert_down_proj", "routed_expert_up_proj"):
        made.plain(f"{model}.layers.1.block_sparse_moe.{leaf}", shard=1)
    for expert in range(2):
        for leaf in ("w1", "w2", "w3"):
            made.packed(f"{model}.layers.1.block_sparse_moe.experts.{expert}.{leaf}", layout, 1)
    made.config = {"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear"}}
    return made
