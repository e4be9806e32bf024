"""``--calibration FILE``: what a conversion takes of a calibration, checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from truecast.casts import gptq, int4
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.layouts import format_of
from truecast.layouts.base import Layout, Matrix, OutTensor
from truecast.layouts.calibration import HESSIAN, Calibration, open_calibration

U8 = NDArray[np.uint8]
Rounding = Literal["data-free", "diagonal", "gptq"]
ROUNDINGS: tuple[Rounding, ...] = ("data-free", "diagonal", "gptq")
"""What the error of a group counts: each weight alike; by its channel's second moment; through the Hessian."""


def open_for(source: Checkpoint, path: Path, cast: Sequence[Matrix], layout: Layout, rounding: str) -> Calibration:
    """Open a calibration and see that it holds what these matrices need.

    Raises: InputError for a file of another checkpoint, a part that is missing or of another shape, an amax or a second
    moment that is no number. Hessians are read when they are used.
    """
    found = open_calibration(path)
    if found.source != source.fingerprint():
        raise InputError(
            f"was made on another checkpoint: its fingerprint is {found.source:.80}, the source's {source.fingerprint()}",
            where=str(path),
            fix="calibrate on this checkpoint",
        )
    if found.weights != source.weights_sha256():
        raise InputError(
            "was made on other weights of the same names and shapes",
            where=str(path),
            fix="calibrate on this checkpoint",
        )
    for matrix in cast:
        if layout.DIALECT == "sglang":
            found.input_scale(matrix.name)
        if rounding == "gptq" and found.has(matrix.name, HESSIAN):
            found.require(matrix.name, HESSIAN, (matrix.cols, matrix.cols))
        elif rounding != "data-free":
            int4.importance(found.second_moment(matrix.name, matrix.cols))
    if rounding == "gptq" and not any(found.has(matrix.name, HESSIAN) for matrix in cast):
        raise InputError(
            f"has no Hessian of {cast[0].name} or of any other matrix here",
            where=str(path),
            fix="calibrate with Hessians, or take --rounding diagonal",
        )
    return found


def scale_origins(emitted: Iterable[OutTensor], calibration: Calibration | None) -> set[str]:
    """Where the activation scales among these tensors come from: ``calibrated``, ``source``, ``1.0``."""
    written = (m for t in emitted if t.role == "input_scale" for piece in t.pieces for m in piece)
    return {
        "calibrated"
        if calibration is not None and format_of(m) == "mxfp4"
        else "1.0"
        if m.input_scale is None
        else "source"
        for m in written
    }


def quantize(
    calibration: Calibration, rounding: str, matrix: Matrix, packed: U8, scales: U8, device: str = "cpu"
) -> int4.Int4Matrix:
    """Quantize rows of a matrix against activation-weighted error; by its diagonal where there is no Hessian.

    Shapes: packed MXFP4 codes ``[n, cols/2]``, E8M0 scales ``[n, cols/32]``.
    Raises: InputError for a Hessian that is none, naming it.
    """
    if rounding == "gptq" and calibration.has(matrix.name, HESSIAN):
        hessian = calibration.hessian(matrix.name, matrix.cols)
        try:
            return gptq.quantize(packed, scales, hessian)
        except ValueError as error:
            where = f"{matrix.name}{HESSIAN} in {calibration.path}"
            raise InputError(str(error), where=where, fix="calibrate again, on this checkpoint") from None
    weights = int4.importance(calibration.second_moment(matrix.name, matrix.cols))
    return int4.quantize(packed, scales, "exact", weights, device=device)


def taken(calibration: Calibration, rounding: str, layout: Layout, cast: Sequence[Matrix]) -> dict[str, Any]:
    """What the manifest says of a calibration, and of what was taken from it."""
    names = {matrix.name for matrix in cast}
    hessians = sum(calibration.has(name, HESSIAN) for name in names) if rounding == "gptq" else 0
    moments = 0 if rounding == "data-free" else len(names) - hessians
    return {
        "file": calibration.path.name,
        "sha256": calibration.sha256,
        "tokens": calibration.tokens,
        "documents": len(calibration.documents),
        "document_sha256": sorted(set(calibration.documents.values())),
        "never_routed": len(calibration.never_routed & names),
        "input_scales": len(names) if layout.DIALECT == "sglang" else 0,
        "second_moments": moments,
        "hessians": hessians,
    }
