"""What serving does to the inputs of quantized matrices and to the KV cache, done to the candidate.

A W4A8 or W4A4 kernel rounds what it multiplies: a weight-only comparison cannot see that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch

from truecast.audit import rounding
from truecast.audit.stored import read_scalar
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.layouts import format_of
from truecast.layouts.base import Matrix

_STATIC = {"fp8-tensor": ("w4afp8", "fp8"), "nvfp4": ("nvfp4",)}
"""Formats whose stored input scales mean what this kind needs."""

_DIVIDES = "nvfp4-compressed-tensors"
_UP = ("w1", "w3", "gate_proj", "up_proj")
"""Projections that one kernel multiplies with one input, and so under one scale."""


class Emulation:
    """Rounds what enters quantized matrices (``kind``) and what the KV cache would keep (``kv``).

    ``scales``: for each module its static input scale, as :func:`input_scales` gives them. A module without one is
    rounded under a scale found at run time: one a token for ``fp8-tensor``, one a call for ``nvfp4``.
    """

    def __init__(self, kind: str, kv: str, scales: dict[str, float]) -> None:
        self.kind, self.kv_kind, self.scales = kind, kv, scales

    @property
    def plain(self) -> bool:
        """Does it change nothing?"""
        return self.kind == "none" and self.kv_kind == "none"

    def input(self, module: str, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """What the matrix of ``module`` multiplies. Shape: ``[n, in]``; the same dtype. ``scale`` alone is not used:
        what counts is the one that the kernel makes of a whole bank's."""
        match self.kind:
            case "none":
                return x
            case "fp8-tensor" if (static := self.scales.get(module)) is not None:
                rounded = rounding.fp8_tensor(x, static)
            case "fp8-tensor" | "fp8-token":
                rounded = rounding.fp8_token(x)
            case "mxfp8":
                rounded = rounding.mxfp8(x)
            case _:
                rounded = rounding.nvfp4(x, self.scales.get(module))
        return rounded.to(x.dtype)

    def kv(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """What the cache gives back for what was put in: E4M3 under scale 1."""
        return x if self.kv_kind == "none" else rounding.e4m3(x).to(x.dtype)


def emulation(kind: str, kv: str, checkpoint: Checkpoint, matrices: Iterable[Matrix]) -> Emulation:
    """The emulation for a candidate. Raises: InputError where ``fp8-tensor`` finds no stored input scale."""
    scales = input_scales(kind, checkpoint, matrices)
    if kind == "fp8-tensor" and not scales:
        raise InputError(
            "stores no input_scale, and --activations fp8-tensor needs one",
            where=checkpoint.location,
            fix="calibrate it, or use --activations fp8-token",
        )
    return Emulation(kind, kv, scales)


def input_scales(kind: str, checkpoint: Checkpoint, matrices: Iterable[Matrix]) -> dict[str, float]:
    """Static input scale of each module, as SGLang applies them; empty where the kind has none.

    The experts of a layer share one: the largest of all w1 and w3, and the largest of all w2, an absent one counting as
    1.0 where others are stored. Source: SGLang 0.5.20, layers/quantization/w4afp8.py, process_weights_after_loading.
    Raises: InputError where one is not positive and finite.
    """
    formats = _STATIC.get(kind, ())
    banks: dict[tuple[str, str], list[Matrix]] = defaultdict(list)
    for matrix in matrices:
        if format_of(matrix) in formats:
            banks[bank_of(matrix.name)].append(matrix)
    scales: dict[str, float] = {}
    for bank in banks.values():
        stored = [_stored(m, checkpoint) for m in bank]
        if any(s is not None for s in stored):
            largest = max(1.0 if s is None else s for s in stored)
            scales.update((m.name, largest) for m in bank)
    return scales


def bank_of(module: str) -> tuple[str, str]:
    """Which modules share a scale: those of one layer's experts with one input. Others stand alone."""
    head, found, tail = module.rpartition(".experts.")
    projection = tail.rpartition(".")[2]
    if not found:
        return module, ""
    return head, "up" if projection in _UP else projection


def _stored(matrix: Matrix, checkpoint: Checkpoint) -> float | None:
    if matrix.input_scale is None:
        return None
    value = read_scalar(matrix.input_scale, checkpoint)
    if not (value > 0 and value < float("inf")):
        raise InputError(
            f"input scale is {value}; it must be positive and finite", where=matrix.input_scale.tensor.where
        )
    return 1 / value if matrix.layout == _DIVIDES else value
