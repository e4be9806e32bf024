"""Where a pass computes, in which dtype, and whether the disk holds its states."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from truecast.errors import RefusedError
from truecast.models.device import choose_device

SPARE_DISK_BYTES = 256 << 20


def device_of(name: str) -> torch.device:
    """The device of ``--device``: ``auto``, ``cpu`` or ``cuda``. Raises: InputError for ``cuda`` without one."""
    return torch.device(choose_device(name))


def dtype_of(device: torch.device) -> torch.dtype:
    """Dtype of activations where none was asked for."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def check_disk(folder: Path, needed: int, smaller: str) -> None:
    """Raises: RefusedError where ``needed`` bytes of states do not fit; ``smaller`` says what would need less."""
    free = shutil.disk_usage(folder).free + sum(p.stat().st_size for p in folder.iterdir())
    if free < needed + SPARE_DISK_BYTES:
        raise RefusedError(
            f"the states of all runs may take {needed / 1e9:,.2f} GB, {free / 1e9:,.2f} GB are free",
            where=str(folder),
            fix=f"free space, choose a folder on another disk, or use {smaller}",
        )
