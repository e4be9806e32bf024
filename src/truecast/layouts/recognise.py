"""Telling quantized matrices from plain tensors, by structure.

A config's ignore list is never asked: Kimi-K3's own omits modules that are plain BF16. What looks packed and fits no
layout, or is the orphaned part of a packed tensor, is a fault, never silently a plain tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from truecast.checkpoint.header import TensorInfo
from truecast.errors import InputError
from truecast.layouts import LAYOUTS
from truecast.layouts.base import Matrix
from truecast.layouts.stacked import MEMBERS

_CODES = (".weight_packed", ".weight", ".qweight", "_blocks")
_PARTS = (
    ".weight_global_scale",
    ".input_global_scale",
    ".weight_scale_2",
    ".weight_scale",
    ".input_scale",
    ".scale",
    "_scales",
)
_BANKS = tuple(f".{projection}" for projection in MEMBERS)
_BANK_PARTS = ("_weight_scale_2", "_weight_scale", "_input_scale")
_PACKED_DTYPES = ("U8", "I8", "F4", "I32")


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint's tensors sorted out: quantized matrices, and the plain tensors that belong to none."""

    matrices: dict[str, Matrix]
    plain: dict[str, TensorInfo]

    @property
    def layouts(self) -> set[str]:
        """Names of the layouts that occur."""
        return {m.layout for m in self.matrices.values()}


def recognise(tensors: Mapping[str, TensorInfo], problem: Callable[[InputError], None] | None = None) -> Contents:
    """Sort tensors into matrices and plain ones.

    ``problem`` receives each packed tensor or scale that fits no layout; by default the first one raises InputError.
    """
    matrices: dict[str, Matrix] = {}
    claimed: set[str] = set()
    layouts = [layout for layout in LAYOUTS.values() if layout.FORMAT != "bf16"]
    for tensor in tensors.values():
        if tensor.dtype not in _PACKED_DTYPES or tensor.name.endswith(_PARTS) or 0 in tensor.shape:
            continue
        for layout in layouts:
            found = layout.match(tensor, tensors)
            if found:
                for matrix in found:
                    if matrix.name in matrices:
                        _report(problem, InputError(f"{matrix.name} is stored twice", where=matrix.where))
                    matrices[matrix.name] = matrix
                    claimed.update(view.tensor.name for view in matrix.parts.values())
                break
    plain = {name: t for name, t in tensors.items() if name not in claimed}
    for tensor in plain.values():
        fault = _packed_fault(tensor, tensors) or _orphan_fault(tensor, tensors)
        if fault is not None:
            _report(problem, fault)
    return Contents(matrices, plain)


def _report(problem: Callable[[InputError], None] | None, error: InputError) -> None:
    if problem is None:
        raise error
    problem(error)


def _packed_fault(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> InputError | None:
    """Why a tensor that looks like packed codes was claimed by no layout; None if it does not look packed."""
    bank = tensor.name.endswith(_BANKS)
    if tensor.dtype not in _PACKED_DTYPES or len(tensor.shape) < 2 or not (bank or tensor.name.endswith(_CODES)):
        return None
    stem = tensor.name if bank else next(tensor.name.removesuffix(s) for s in _CODES if tensor.name.endswith(s))
    partners = {s: tensors[stem + s] for s in (_BANK_PARTS if bank else _PARTS) if stem + s in tensors}
    have = (
        ", ".join(f"{stem.rpartition('.')[2]}{s} {t.dtype} {list(t.shape)}" for s, t in partners.items()) or "no scales"
    )
    packed, rest = tensor.shape[-1:], list(tensor.shape[:-1])
    if tensor.name.endswith("_blocks"):
        packed, rest = tensor.shape[2:], list(tensor.shape[:2])
    elif bank:
        packed, rest = tensor.shape[1:2], list(tensor.shape[:1])
    cols, rows = math.prod(packed) * 2, list(tensor.shape[2:]) if bank else []
    if 0 in tensor.shape:
        problem = f"{tensor.dtype} {list(tensor.shape)} holds no element"
    elif tensor.dtype in ("U8", "I8") and cols % 32:
        problem = f"its last dimension holds {cols} elements, which is no multiple of 32"
    elif not partners:
        problem = f"{tensor.dtype} {list(tensor.shape)} looks packed, but its scales are missing"
    elif tensor.dtype == "I32":
        problem = f"I32 {list(tensor.shape)} with {have} is packed in words, which no layout here reads"
    else:
        mxfp4 = "" if bank else f" MXFP4 wants scales U8 {[*rest, cols // 32]},"
        problem = (
            f"{tensor.dtype} {list(tensor.shape)} with {have} fits no layout;{mxfp4}"
            f" NVFP4 wants scales F8_E4M3 {[*rest, cols // 16, *rows]} and an F32 scalar global scale"
        )
    return InputError(problem, where=tensor.where, fix="download it again, or name the format in an issue")


def _orphan_fault(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> InputError | None:
    """A scale whose codes are missing; None if the tensor is no scale or scales an unpacked tensor."""
    stem = next((tensor.name.removesuffix(s) for s in _BANK_PARTS if tensor.name.endswith(s)), "")
    if not stem.endswith(_BANKS):
        suffix = next((s for s in _PARTS if tensor.name.endswith(s)), None)
        if suffix is None or tensor.name.endswith(_CODES):
            return None
        if suffix in (".scale", "_scales") and tensor.dtype not in ("U8", "F8_E8M0"):
            return None  # many models call a norm's weight so
        stem = tensor.name.removesuffix(suffix)
    if any(stem + s in tensors for s in (*_CODES, "")) and stem:
        return None
    return InputError(
        f"{tensor.dtype} {list(tensor.shape)} is a scale, but the tensor that it scales is missing",
        where=tensor.where,
        fix="download the checkpoint again",
    )
