"""The bytes of a matrix under a W4AFP8 target: INT4 codes with the BF16 scales of least error."""

from __future__ import annotations

from typing import cast as typed

import numpy as np
from numpy.typing import NDArray

from truecast.casts import int4
from truecast.convert import calibrated
from truecast.convert.floats import widen
from truecast.convert.parts import Cast, Parts, Read, Tally
from truecast.convert.reading import Codes, read_scalar, read_scale
from truecast.errors import InputError
from truecast.formats.int4 import swap_forms
from truecast.layouts import format_of
from truecast.layouts.base import Matrix

U8 = NDArray[np.uint8]


def parts(matrix: Matrix, read: Read, target: Cast, tally: Tally) -> Parts:
    """Codes in the form that the dialect packs, and BF16 scales.

    From MXFP4 the groups are quantized; from the other W4AFP8 dialect nothing changes but the form.
    """
    offset = target.dialect == "compressed-tensors"
    codes = Codes(matrix, read)
    if format_of(matrix) == "w4afp8":
        swap = offset != matrix.layout.endswith("compressed-tensors")
        scale = bf16_scales(matrix, read)
        return Parts(scale, (lambda: swap_forms(codes.packed())) if swap else None)
    made = quantized(matrix, codes.packed(), read_scale(matrix, read), target)
    if tally.first(matrix.name):
        tally.int4[matrix.name] = {
            "squared_error": made.squared_error,
            "squared_sum": made.squared_sum,
            "groups": made.scales.size,
            "exact_groups": made.exact_groups,
            "zero_groups": made.zero_groups,
            "negative_scales": made.negative_scales,
        }
    return Parts(made.scales.view(np.uint8), lambda: swap_forms(made.codes) if offset else made.codes)


def quantized(matrix: Matrix, packed: U8, scales: U8, target: Cast) -> int4.Int4Matrix:
    """Rows of an MXFP4 matrix as INT4, by the target's rules. Shapes: packed ``[n, cols/2]``, scales ``[n, cols/32]``."""
    if target.calibration is not None and target.rounding != "data-free":
        return calibrated.quantize(target.calibration, target.rounding, matrix, packed, scales, target.device)
    weights = None if target.importance is None else target.importance.of(matrix)
    return int4.quantize(packed, scales, typed(int4.Method, target.method), weights, device=target.device)


def bf16_scales(matrix: Matrix, read: Read) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Group scales of a W4AFP8 matrix as stored BF16. Raises: InputError where BF16 does not hold one exactly."""
    stored = read_scale(matrix, read)
    dtype = matrix.scale.tensor.dtype
    if dtype == "BF16":
        return stored
    bits = widen(stored, dtype).view(np.uint32)
    if (bits & 0xFFFF).any():
        row, group = (int(i) for i in np.argwhere(bits & 0xFFFF)[0])
        raise InputError(
            f"{matrix.name}: group scale at row {row}, group {group} is no BF16 number, and BF16 is what is written",
            where=matrix.scale.tensor.where,
            fix="engines round it to BF16 when they load it; convert from the original checkpoint instead",
        )
    return (bits >> 16).astype("<u2").view(np.uint8)


def input_scale(matrix: Matrix, read: Read, target: Cast) -> np.float32:
    """The activation scale: calibrated, the source's, or 1.0 (values up to 448 pass)."""
    if target.calibration is not None and format_of(matrix) == "mxfp4":
        return target.calibration.input_scale(matrix.name)
    if matrix.input_scale is None:
        return np.float32(1)
    return read_scalar(matrix.input_scale, read, "activation scale")
