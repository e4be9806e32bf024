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
from truecast.layouts import LAYOUTS, Layout
from truecast.layouts.base import Matrix
from truecast.layouts.stacked import MEMBERS

_CODES = (".weight_packed", ".weight", ".qweight", "_blocks")
_PARTS = (
    ".weight_scale_inv",
    ".weight_shape",
    ".weight_global_scale",
    ".input_global_scale",
    ".weight_scale_2",
    ".weight_scale",
    ".input_scale",
    ".scale",
    "_scales",
)
_SCALES = (".scale", ".weight_scale", ".weight_scale_inv")
"""Scales of one module of which two can fit the same codes."""
_BANKS = tuple(f".{projection}" for projection in MEMBERS)
_BANK_PARTS = ("_weight_scale_2", "_weight_scale", "_input_scale")
_PACKED_DTYPES = ("U8", "I8", "F4", "I32")
_CODE_DTYPES = (*_PACKED_DTYPES, "F8_E4M3")
"""Dtypes that codes may have. FP8 says nothing of scales: where it fits no layout it is a plain tensor."""
_FOREIGN = (".weight_zero_point", ".weight_g_idx")
_RAGGED = "columns-not-multiple"


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
        if tensor.dtype not in _CODE_DTYPES or tensor.name.endswith(_PARTS) or 0 in tensor.shape:
            continue
        for layout in layouts:
            found = layout.match(tensor, tensors)
            if found:
                if (fault := _second_meaning(tensor, tensors, layout)) is not None:
                    _report(problem, fault)
                for matrix in found:
                    if matrix.name in matrices:
                        twice = f"{matrix.name} is stored twice"
                        _report(problem, InputError(twice, where=matrix.where, code="matrix-duplicate"))
                    matrices[matrix.name] = matrix
                    claimed.update([view.tensor.name for view in matrix.parts.values()])
                break
    plain = {name: t for name, t in tensors.items() if name not in claimed}
    for tensor in plain.values():
        fault = _packed_fault(tensor, tensors) or _fp8_fault(tensor, tensors) or _orphan_fault(tensor, tensors)
        if fault is not None:
            _report(problem, fault)
    return Contents(matrices, plain)


def _report(problem: Callable[[InputError], None] | None, error: InputError) -> None:
    if problem is None:
        raise error
    problem(error)


def _second_meaning(tensor: TensorInfo, tensors: Mapping[str, TensorInfo], first: Layout) -> InputError | None:
    """What to say of codes that a second scale gives another meaning; None of nearly all, which have one scale."""
    module = tensor.name.removesuffix(".weight")
    if len([suffix for suffix in _SCALES if module + suffix in tensors]) < 2:
        return None
    others = [
        o.NAME for o in LAYOUTS.values() if o.NAME != first.NAME and o.FORMAT != "bf16" and o.match(tensor, tensors)
    ]
    if not others:
        return None
    return InputError(
        f"can be read as {first.NAME} and as {' and '.join(others)}: it has scales of both",
        where=tensor.where,
        fix="remove the scales that do not belong to it",
    )


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
    code = ""
    if 0 in tensor.shape:
        problem = f"{tensor.dtype} {list(tensor.shape)} holds no element"
    elif tensor.dtype in ("U8", "I8") and cols % (multiple := 128 if ".weight_scale_inv" in partners else 32):
        problem = f"its last dimension holds {cols} elements, which is no multiple of {multiple}"
        code = _RAGGED
    elif not partners:
        problem = f"{tensor.dtype} {list(tensor.shape)} looks packed, but its scales are missing"
    elif tensor.dtype == "I32" and tensor.name.endswith(".weight_packed"):
        words, code = _words_fault(tensor, stem, partners, tensors)
        problem = f"I32 {list(tensor.shape)} with {have} {words}"
    elif tensor.dtype == "I8" and ".weight_scale_inv" in partners:
        problem = (
            f"I8 {list(tensor.shape)} with {have} fits no layout; W4AFP8 wants a weight of two dimensions and"
            f" weight_scale_inv BF16 or F32 {[*rest, cols // 128]}, one for each 128 elements"
        )
    elif tensor.dtype == "I32":
        problem = f"I32 {list(tensor.shape)} with {have} is packed in words, which no layout here reads"
    else:
        mxfp4 = "" if bank else f" MXFP4 wants scales U8 {[*rest, cols // 32]},"
        problem = (
            f"{tensor.dtype} {list(tensor.shape)} with {have} fits no layout;{mxfp4}"
            f" NVFP4 wants scales F8_E4M3 {[*rest, cols // 16, *rows]} and an F32 scalar global scale"
        )
    return InputError(problem, where=tensor.where, fix="download it again, or name the format in an issue", code=code)


def _words_fault(
    tensor: TensorInfo, stem: str, partners: Mapping[str, TensorInfo], tensors: Mapping[str, TensorInfo]
) -> tuple[str, str]:
    """What keeps 4-bit codes in I32 words from being read, and the code of that fault."""
    cols = tensor.shape[-1] * 8
    foreign = next((suffix for suffix in _FOREIGN if stem + suffix in tensors), None)
    if foreign:
        return f"has a {foreign[1:]} too; only symmetric 4-bit codes in their own order are read", ""
    if cols % 128:
        return f"is packed in words of {cols} elements a row, which is no multiple of 128", _RAGGED
    wanted = f"scales BF16, F16 or F32 {[*tensor.shape[:-1], cols // 128]} and a weight_shape I64 [2]"
    scale = partners.get(".weight_scale")
    groups = scale.shape[1] if scale and len(scale.shape) == len(tensor.shape) == 2 else 0
    if groups and groups != cols // 128 and cols % groups == 0:
        of = cols // groups
        return f"has one scale for {of} elements (as 4-bit codes); only groups of 128 are read: {wanted}", ""
    return f"fits no layout; W4AFP8 in words wants two dimensions, {wanted}", ""


def _fp8_fault(tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> InputError | None:
    """Why an FP8 weight with block scales was claimed by no layout; None if it has none, and so is plain."""
    scale = tensors.get(tensor.name.removesuffix(".weight") + ".weight_scale_inv")
    if tensor.dtype != "F8_E4M3" or not tensor.name.endswith(".weight") or scale is None:
        return None
    if scale.dtype not in ("F32", "BF16", "F16", "F64") or scale.shape in ((), (1,)) or 0 in tensor.shape:
        return None  # MX scales, or one scale for the whole tensor: other forms of FP8, carried over as they are
    blocks = [-(-n // 128) for n in tensor.shape[-2:]]
    return InputError(
        f"F8_E4M3 {list(tensor.shape)} with weight_scale_inv {scale.dtype} {list(scale.shape)} fits no layout; FP8 by"
        f" blocks wants a weight of two dimensions and weight_scale_inv F32 or BF16 {blocks}, one for 128 x 128",
        where=tensor.where,
        fix="download it again, or name the format in an issue",
    )


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
    kind = "is the shape of a packed tensor" if tensor.name.endswith(".weight_shape") else "is a scale"
    missing = "that tensor" if tensor.name.endswith(".weight_shape") else "the tensor that it scales"
    return InputError(
        f"{tensor.dtype} {list(tensor.shape)} {kind}, but {missing} is missing",
        where=tensor.where,
        fix="download the checkpoint again",
        code="scale-orphan",
    )
