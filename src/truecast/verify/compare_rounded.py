"""Does a BF16 matrix hold what an INT4 or FP8 one means, rounded once? Bit patterns, computed here."""

from __future__ import annotations

import numpy as np

from truecast.errors import InputError
from truecast.verify.matrix import First, MatrixResult
from truecast.verify.rounding import bf16_bits
from truecast.verify.rules import Rules
from truecast.verify.scaled import Scaled
from truecast.verify.stored import PlainRows

_ELEMENTS = 1 << 19  # decoded at a time


def compare_rounded(source: Scaled, out: PlainRows, rules: Rules) -> MatrixResult:
    """Compare bit patterns; values that BF16 cannot hold must be rounded to nearest even, and declared.

    A code of zero may be zero of either sign under a negative INT4 scale: an integer zero has none.
    Raises: InputError for a source with scales that are zero or not finite, or codes that are NaN.
    """
    if not source.legal:
        raise InputError(
            f"{source.stored.name}: a scale is zero or not finite, or a code is NaN",
            where=source.stored.parts["scale"].tensor.where,
            fix="the source itself is damaged: download the shard again",
        )
    result = MatrixResult(out.stored)
    wrong, inexact = First(), 0
    step = max(1, _ELEMENTS // source.stored.cols)
    for first in range(0, source.stored.rows, step):
        last = min(first + step, source.stored.rows)
        values = source.values(first, last)
        bits, exact = bf16_bits(values)
        inexact += int(np.count_nonzero(~exact))
        stored = out.rows(first, last)
        differing = bits != stored
        if source.stored.format == "w4afp8" and differing.any():
            differing &= (values != 0) | (stored & 0x7FFF != 0)
        places = np.argwhere(differing)
        for row, column in places[:1]:
            why = f"bits are 0x{int(stored[row, column]):04x}, the source's value is 0x{int(bits[row, column]):04x}"
            wrong.note(first + int(row), int(column), why)
            wrong.count += len(places) - 1
    wrong.tell(result, "value", "weight", "elements differ")
    result.counts.inexact_elements = inexact
    if inexact and not (rules.allow_inexact and rules.rounded.get(out.stored.name) == inexact):
        result.fail("inexact", "weight", f"{inexact} values are rounded, which the manifest does not say")
    return result
