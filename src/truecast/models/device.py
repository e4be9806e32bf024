"""Where a reference model computes."""

from __future__ import annotations

import torch

from truecast.errors import InputError


def choose_device(wanted: str) -> str:
    """``auto``: CUDA where there is one, else the CPU. Raises: InputError for ``cuda`` without one."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch finds no CUDA device", fix="run with --device cpu")
    return wanted
