"""A tiny MXFP4 checkpoint with modelling code of our own beside it, as Kimi-K3 comes with its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CODE = Path(__file__).parent / "remote_code"
HEADS, WIDTH, HIDDEN, VOCAB, LAYERS = 2, 16, 32, 32, 2
DECAYS = (0.5, 1.5)
TEXT = {
    "model_type": "kimi_linear",
    "architectures": ["KimiLinearForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "linear_attn_config": {"num_heads": HEADS, "head_dim": WIDTH},
    "torch_dtype": "float32",
}


def make(folder: Path, *, length: int = WIDTH, tail: float = 0.0, wide: bool = False, nested: bool = False) -> Path:
    """Write the checkpoint.

    ``length``: of A_log as stored; ``tail``: its last value in layer 1. ``wide``: the code has the early, wrong fix.
    ``nested``: the model lies inside another, as Kimi-K3's text model does.
    """
    folder.mkdir()
    for path in CODE.glob("*.py"):
        if path.name != "__init__.py":
            text = path.read_text()
            if wide:
                text = text.replace("torch.empty(self.num_heads,", "torch.empty(self.head_dim,")
            (folder / path.name).write_text(text)
    stem = "language_model." if nested else ""
    save_file({stem + n: v for n, v in tensors(length, tail).items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(nested)))
    return folder


def tensors(length: int, tail: float) -> dict[str, Any]:
    """Everything F32, but for ``o_proj`` in MXFP4."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {
        "model.embed_tokens.weight": normal(rng, VOCAB, HIDDEN),
        "lm_head.weight": normal(rng, VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}.self_attn."
        for name in "qkvf":
            made[f"{stem}{name}_proj.weight"] = normal(rng, HEADS * WIDTH, HIDDEN)
        made[f"{stem}b_proj.weight"] = normal(rng, HEADS, HIDDEN)
        made[f"{stem}o_proj.weight_packed"] = rng.integers(0, 256, (HIDDEN, HEADS * WIDTH // 2), dtype=np.uint8)
        made[f"{stem}o_proj.weight_scale"] = np.full((HIDDEN, HEADS * WIDTH // 32), 124, np.uint8)
        decays = np.zeros(length, np.float32)
        decays[:HEADS] = DECAYS
        if layer == 1 and length > HEADS:
            decays[-1] = tail
        made[f"{stem}A_log"] = decays
    return made


def normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(0, 0.3, shape).astype(np.float32)


def config(nested: bool) -> dict[str, Any]:
    stem, outer = ("modeling_kimi_k3.KimiK3ForConditionalGeneration", "KimiK3Config") if nested else (
        "modeling_kimi_linear.KimiLinearForCausalLM", "KimiLinearConfig")  # fmt: skip
    code = {"AutoConfig": f"configuration_kimi_linear.{outer}", "AutoModelForCausalLM": stem}
    if nested:
        return {"model_type": "kimi_k3", "architectures": [stem.split(".")[1]], "auto_map": code, "text_config": TEXT}
    return {**TEXT, "auto_map": code}
