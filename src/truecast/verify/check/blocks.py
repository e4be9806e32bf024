"""One finding for all the scales of a matrix that a rule is broken by: the first of them by its place, and how many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from truecast.layouts.base import Matrix
from truecast.verify.check.findings import Collector, Place


def add_scales(
    found: Collector,
    rule: str,
    matrix: Matrix,
    bad: NDArray[np.bool_],
    message: str,
    *,
    what: str,
    harmless: bool = False,
    why: str | None = None,
) -> None:
    """Add it, if any is ``bad``. Shape: one bool for each scale, ``[rows, blocks]``. ``what`` is what a scale stands for.

    ``harmless``: the codes under them are zeros.
    """
    count = int(np.count_nonzero(bad))
    if not count:
        return
    row, block = divmod(int(bad.argmax()), bad.shape[1])
    tensor = matrix.scale.tensor
    found.add(
        rule,
        Place(tensor.file, tensor.name, matrix.name, row, block),
        f"{message}; {count} of {bad.size} {what} of this matrix",
        severity="warning" if harmless else None,
        why="no weight is lost, but a kernel that divides by the scale gets NaN" if harmless else why,
    )
