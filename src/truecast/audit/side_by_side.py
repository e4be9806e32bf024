"""Two audits against one reference, side by side; position by position where both kept their positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from truecast.audit.paired import SAME_RUN, compared, paired_folders
from truecast.errors import InputError
from truecast.statistics.equivalence import Estimate, detectable


def side_by_side(a: Mapping[str, Any], b: Mapping[str, Any], files: tuple[Path, Path]) -> dict[str, Any]:
    """KL, noise floor and excess of two documents of ``truecast audit``, with the paired difference, B less A.

    The pair is there where both documents lie beside their ``positions/``; without it, intervals of the two are no test of
    their difference: they come from the same tokens.
    Returns the part of ``truecast.compare/1`` that docs/compare.md lists. Units: nats per token.
    Raises: InputError where the references or corpora differ, or a figure is missing.
    """
    where = f"{files[0]} and {files[1]}"
    for what, (one, other) in compared(dict(a), dict(b)).items():
        if one != other:
            raise InputError(f"{what}: {one!r:.80} against {other!r:.80}", where=where, fix=SAME_RUN)
    sides = [_side(document, file) for document, file in zip((a, b), files, strict=True)]
    kept = all((file.parent / "positions" / "kl.npy").is_file() for file in files)  # a served audit has bounds instead
    whole = kept and not any(document.get("identical") for document in (a, b))
    paired = paired_folders(files[1].parent, files[0].parent) if whole else None
    warnings = []
    if paired is None:
        warnings.append(
            "no positions are kept of both: the difference has no interval, and overlap of two intervals is no test"
        )
    return {
        "kind": "audit",
        "a": sides[0],
        "b": sides[1],
        "unit": "document",
        "paired": paired,
        "detectable": None if paired is None else _detectable(paired["difference"]),
        "warnings": warnings,
    }


def _detectable(difference: Mapping[str, Any]) -> float | None:
    if difference["se"] is None:
        return None
    return detectable(Estimate(difference["mean"], difference["se"], difference["documents"] - 1))


def _side(document: Mapping[str, Any], file: Path) -> dict[str, Any]:
    candidate = document.get("candidate")
    return {
        "file": str(file),
        "candidate": candidate if isinstance(candidate, dict) else {},
        "activations": document.get("activations", "none"),
        "kv": document.get("kv", "none"),
        "kl": _figure(document, "kl", file),
        "floor": _figure(document, "floor", file) if document.get("floor") else None,
        "excess": _figure(document, "excess", file) if document.get("excess") else None,
    }


def _figure(document: Mapping[str, Any], key: str, file: Path) -> dict[str, Any]:
    figure = document.get(key)
    mean = figure.get("mean") if isinstance(figure, dict) else None
    ends = figure.get("interval") if isinstance(figure, dict) else None
    if not _number(mean) or not (
        ends is None or (isinstance(ends, list) and len(ends) == 2 and all(map(_number, ends)))
    ):
        raise InputError(f"{key} holds no mean with an interval", where=str(file), fix="run the audit again")
    return {"mean": mean, "interval": ends}


def _number(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )
