"""The bytes of a matrix under a W4AFP8 target: INT4 codes with the BF16 scales of least error."""

from __future__ import annotations

from typing import cast as typed

import numpy as np

from truecast.casts import int4
from truecast.convert.floats import widen
from truecast.convert.parts import Cast, Parts, Read, Tally
from truecast.convert.reading import Codes, read_scalar, read_scale
from truecast.errors import InputError
from truecast.formats.int4 import swap_forms
from truecast.layouts import format_of
from truecast.layouts.base import Matrix


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
    made = int4.quantize(
        codes.packed(),
        read_scale(matrix, read),
        typed(int4.Method, target.method),
        None if target.importance is None else target.importance.of(matrix),
        device=target.device,
    )
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


def input_scale(matrix: Matrix, read: Read) -> np.float32:
    """The activation scale: the source's, or 1.0 (values up to 448 pass; calibration finds a better one)."""
    if matrix.input_scale is None:
        return np.float32(1)
    return read_scalar(matrix.input_scale, read, "activation scale")
