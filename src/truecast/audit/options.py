"""How an audit is to run."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Options:
    """How to audit. ``device``: ``auto``, ``cpu`` or ``cuda``. ``memory``: bytes of resident memory, None as it comes.

    ``seeds``: of the noise floor; empty for none. ``force``: compute both sides, even where they are equal.
    ``limit``: only the first documents. ``dtype``: None for float32 on the CPU and bfloat16 on a GPU.
    """

    device: str = "auto"
    memory: int | None = None
    activations: str = "none"
    kv: str = "none"
    seeds: tuple[int, ...] = (0, 1, 2)
    force: bool = False
    limit: int | None = None
    dtype: torch.dtype | None = None
