"""On which documents a checkpoint was calibrated, itself or what it was converted from: its manifest says."""

from __future__ import annotations

import json
from typing import Any

from truecast.checkpoint.journal import MANIFEST
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.layouts.calibration import is_sha256

MAX_BYTES = 1 << 30
"""No manifest is larger."""


def calibrated_on(checkpoint: Checkpoint) -> frozenset[str]:
    """:func:`~truecast.layouts.calibration.document_sha256` of each document; empty without a manifest or a calibration.

    Raises: InputError where the manifest says that there was a calibration, but not on what.
    """
    if not _has_manifest(checkpoint):
        return frozenset()
    try:
        document: Any = json.loads(checkpoint.read_small(MANIFEST, MAX_BYTES))
        calibration = (document.get("int4") or {}).get("calibration")
        told = [[] if calibration is None else calibration["document_sha256"]]
        told.append((document.get("source") or {}).get("calibrated_on", []))
        if calibration is not None and not told[0]:
            raise ValueError
        if not all(isinstance(hashes, list) and all(is_sha256(one) for one in hashes) for hashes in told):
            raise ValueError
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise InputError(
            "is damaged, or does not say which documents the checkpoint was calibrated on",
            where=f"{checkpoint.location}/{MANIFEST}",
            fix="convert again with this version of truecast",
        ) from None
    return frozenset(one for hashes in told for one in hashes)


def _has_manifest(checkpoint: Checkpoint) -> bool:
    if checkpoint.local_path is not None:
        return (checkpoint.local_path / MANIFEST).is_file()
    try:
        checkpoint.opener(MANIFEST).close()
    except InputError:
        return False
    return True
