"""What a verification takes of ``--calibration FILE``: activation scales derived again, and second moments as weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from truecast.errors import InputError
from truecast.layouts.calibration import MOMENT, Calibration, open_calibration
from truecast.verify.importance import Importance, open_importance
from truecast.verify.rules import Rules


def open_declared(path: Path, rules: Rules) -> tuple[Calibration, Importance | None]:
    """Open the calibration that the manifest names; its second moments too, if groups were weighed by them.

    Raises: InputError for a file that is none, or not the one of the manifest.
    """
    found = open_calibration(path)
    said = rules.int4.calibration if rules.int4 else None
    if said is not None and found.sha256 != said:
        raise InputError(
            f"is not the calibration that was used: its sha256 is {found.sha256}, not {said}", where=str(path)
        )
    diagonal = rules.int4 is not None and rules.int4.diagonal
    return found, open_importance(path, MOMENT) if diagonal else None


def wanted_scales(found: Calibration, modules: Iterable[str]) -> dict[str, np.float32]:
    """Module -> largest magnitude of its inputs over 448, in float32, held to 2^-24 or more.

    Raises: InputError where the file has no amax of a module, or one that is no number.
    """
    return {name: np.float32(max(found.amax(name) / np.float32(448), np.float32(2.0**-24))) for name in modules}
