"""A small checkpoint shaped like Kimi-K3 in W4AFP8: INT4 experts, attention in FP8 blocks, the rest BF16.

Filled by hand with random contents, names and types as the layouts say, the ignore list as the families say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from examples.shaped import kimi_k3
from truecast.families import KIMI_K3
from truecast.families.base import aliases, fused_modules
from truecast.layouts import w4afp8_sglang

SHAPE = kimi_k3.K3Shape(
    layers=4, experts=4, hidden=256, latent=512, expert_width=256, dense_width=512, heads=4, head_dim=128, q_lora=128,
    kv_lora=128, rope_dim=64,
)  # fmt: skip
"""Every FP8 projection and every expert can be split in four resp. two, as whole tiles and groups."""

FP8_LEAVES = ("q_proj", "k_proj", "v_proj", "g_proj", "o_proj")

Tensors = dict[str, torch.Tensor]


def make(folder: Path) -> Path:
    """Write the checkpoint into ``folder``."""
    source = folder.parent / "mxfp4"
    kimi_k3.make(source, shape=SHAPE)
    generator = torch.Generator().manual_seed(0)
    folder.mkdir()
    names: dict[str, str] = {}
    plain: list[str] = []
    for shard in sorted(source.glob("*.safetensors")):
        tensors: Tensors = {}
        for name, tensor in load_file(shard).items():
            module, _, leaf = name.rpartition(".")
            if leaf == "weight_packed":
                tensors |= _int4(module, tensor.shape[0], 2 * tensor.shape[1], generator)
            elif leaf == "weight" and module.rpartition(".")[2] in FP8_LEAVES and ".self_attn." in name:
                tensors |= _fp8(module, *tensor.shape, generator)
            elif leaf != "weight_scale":
                tensors[name] = tensor
                if leaf == "weight" and tensor.dim() == 2:
                    plain.append(module)
        save_file(tensors, folder / shard.name, {"format": "pt"})
        names |= dict.fromkeys(tensors, shard.name)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    del config["text_config"]["quantization_config"]
    spellings = {alias for module in [*plain, *fused_modules(KIMI_K3, plain)] for alias in aliases(KIMI_K3, module)}
    config["quantization_config"] = w4afp8_sglang.quantization_config(sorted(spellings), activations=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return folder


def load(folder: Path) -> Tensors:
    """Every tensor of the checkpoint."""
    return {name: tensor for shard in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(shard).items()}


def _int4(module: str, rows: int, cols: int, generator: torch.Generator) -> Tensors:
    scales = torch.randn(rows, cols // 128, generator=generator).to(torch.bfloat16)  # of both signs
    return {
        f"{module}.weight": torch.randint(-128, 128, (rows, cols // 2), dtype=torch.int8, generator=generator),
        f"{module}.weight_scale_inv": scales,
        f"{module}.input_scale": torch.tensor(0.5 if module.endswith("w2") else 0.375),
    }


def _fp8(module: str, rows: int, cols: int, generator: torch.Generator) -> Tensors:
    codes = torch.randn(rows, cols, generator=generator).to(torch.float8_e4m3fn)
    tiles = torch.rand(rows // 128, cols // 128, generator=generator) + 0.5
    return {f"{module}.weight": codes, f"{module}.weight_scale_inv": tiles}
