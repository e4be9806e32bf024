"""Calibrations of made-up inputs for small sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.convert.w4afp8_sources import EXPERT, LEAVES
from truecast.checkpoint.source import open_checkpoint
from truecast.layouts.calibration import InputStatistics, document_sha256, write_calibration

COLS = 256
MODULES = [EXPERT + leaf for leaf in LEAVES]


def statistics(seed: int, *, hessian: bool = True, cols: int = COLS) -> InputStatistics:
    """Of inputs that are a mixture of few factors, with channels of different size."""
    rng = np.random.default_rng(seed)
    inputs = (rng.normal(size=(512, cols // 4)) @ rng.normal(size=(cols // 4, cols))) * np.exp(rng.normal(size=cols))
    second = inputs.T @ inputs / len(inputs)
    second = ((second + second.T) / 2).astype(np.float32)
    return InputStatistics(
        float(np.abs(inputs).max()), np.diag(second).copy(), len(inputs), second if hessian else None
    )


def make(path: Path, source: Path, **changed: InputStatistics) -> Path:
    """A calibration of the three matrices of one expert; ``changed``: other statistics, by leaf."""
    found = {EXPERT + leaf: changed.get(leaf) or statistics(i) for i, leaf in enumerate(LEAVES)}
    checkpoint = open_checkpoint(source)
    write_calibration(
        path,
        found,
        source=checkpoint.fingerprint(),
        weights=checkpoint.weights_sha256(),
        documents={"a": document_sha256([1, 2])},
        tokens=512,
    )
    return path
