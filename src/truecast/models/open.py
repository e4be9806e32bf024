"""Opening a checkpoint as a reference model."""

from __future__ import annotations

import os
from reprlib import repr as short

import torch

from truecast.checkpoint.source import CONFIG, open_checkpoint
from truecast.errors import InputError
from truecast.layouts.recognise import recognise
from truecast.models import llama
from truecast.models.base import Decoder
from truecast.models.kimi_k3.config import read_config
from truecast.models.kimi_k3.model import KimiK3
from truecast.models.model import Model


def open_model(
    location: str | os.PathLike[str], device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Decoder:
    """Open a checkpoint by its ``model_type``; nothing but headers and config.json is read yet.

    ``dtype`` is that of the activations: float32, bfloat16 or float64; by default bfloat16 on CUDA, else float32.
    Raises: InputError for another kind of model, or a checkpoint that does not fit its config.
    """
    checkpoint = open_checkpoint(location)
    where = f"{checkpoint.location}/{CONFIG}"
    if not checkpoint.config:
        raise InputError("is missing or empty", where=where, fix="download config.json too")
    kind = checkpoint.config.get("model_type")
    if kind not in ("kimi_k3", "kimi_linear", "llama"):
        raise InputError(
            f"model_type is {short(kind)}; there are reference models of kimi_k3, kimi_linear and llama", where=where
        )
    device = torch.device(device)
    chosen = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    architecture = (
        llama.Llama(llama.read_config(checkpoint.config, where))
        if kind == "llama"
        else KimiK3(read_config(checkpoint.config, where))
    )
    return Model(architecture, checkpoint, recognise(checkpoint.tensors), device, chosen)
