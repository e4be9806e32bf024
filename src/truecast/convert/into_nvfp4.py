"""The bytes of a matrix under an NVFP4 target: codes mostly as they are, scales rewritten."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from truecast.casts.mxfp4_to_nvfp4 import NVFP4Report, cast
from truecast.convert.parts import Parts, Read, Tally
from truecast.convert.reading import Codes, inverted, read_global_scale, read_scalar, read_scale
from truecast.layouts import format_of
from truecast.layouts.base import Matrix


def parts(matrix: Matrix, read: Read, m: Mapping[str, int], tally: Tally) -> Parts:
    """Block scales under global scale 2^m, and the codes that had to be shifted. NVFP4 stays as it is."""
    scale = read_scale(matrix, read)
    if format_of(matrix) != "mxfp4":
        return Parts(scale)
    codes = Codes(matrix, read)
    scale, changes, report = cast(scale, m[matrix.name], codes.blocks)
    if tally.first(matrix.name):
        _count(matrix, report, tally)
    return Parts(scale, None if changes is None else lambda: changes.apply(codes.packed()))


def _count(matrix: Matrix, report: NVFP4Report, tally: Tally) -> None:
    tally.half_blocks += report.half_blocks
    tally.renormalised += report.renormalised
    tally.subnormal_scales += report.subnormal_scales
    if report.subnormal_live:
        tally.subnormal_live[matrix.name] = report.subnormal_live
    tally.inexact += [
        {
            "matrix": matrix.name,
            "row": block.row,
            "column": block.column,
            "source_exponent": block.source_exponent,
            "squared_error": block.squared_error,
            "squared_sum": block.squared_sum,
        }
        for block in report.inexact
    ]


def global_scale(matrix: Matrix, read: Read, m: Mapping[str, int], dialect: str) -> np.float32:
    """The global scale as this dialect stores it: a factor, or in compressed-tensors a divisor."""
    divides = dialect == "compressed-tensors"
    if format_of(matrix) == "mxfp4":
        return np.float32(np.ldexp(np.float32(1), -m[matrix.name] if divides else m[matrix.name]))
    assert matrix.global_scale is not None
    value = read_global_scale(matrix, read)
    same = divides == matrix.layout.endswith("compressed-tensors")
    return value if same else inverted(value, matrix.global_scale)


def input_scale(matrix: Matrix, read: Read, dialect: str) -> np.float32:
    """The activation scale: 1.0 where the source has none, else the source's as this dialect stores it."""
    if matrix.input_scale is None:
        return np.float32(1)
    value = read_scalar(matrix.input_scale, read, "activation scale")
    same = (dialect == "compressed-tensors") == matrix.layout.endswith("compressed-tensors")
    return value if same else inverted(value, matrix.input_scale)
