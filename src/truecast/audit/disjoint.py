"""Documents that a candidate was calibrated on tell nothing of others: an audit refuses them."""

from __future__ import annotations

import json
from typing import Any

from truecast.audit.corpus import Corpus
from truecast.checkpoint.journal import MANIFEST
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.layouts.calibration import document_sha256

MAX_BYTES = 1 << 30
"""No manifest is larger."""

_SHOWN = 3


def check_disjoint(candidate: Checkpoint, corpus: Corpus) -> None:
    """Documents are told apart by their token ids, whatever they are called.

    Raises: InputError where the candidate's manifest says that it was calibrated on a document of ``corpus``, or that it
    was calibrated but not on what.
    """
    used = _calibrated_on(candidate)
    if not used:
        return
    shared = [d.id for d in corpus.documents if document_sha256(d.tokens.tolist()) in used]
    if shared:
        names = ", ".join(repr(name) for name in shared[:_SHOWN]) + (", ..." if len(shared) > _SHOWN else "")
        raise InputError(
            f"{candidate.location} was calibrated on {len(shared)} of these {len(corpus.documents)} documents: {names}",
            where=corpus.location,
            fix="audit on other documents",
        )


def _calibrated_on(candidate: Checkpoint) -> frozenset[str]:
    """Hashes of the documents of a calibration; empty where the checkpoint has no manifest, or used none."""
    if not _has_manifest(candidate):
        return frozenset()
    try:
        document: Any = json.loads(candidate.read_small(MANIFEST, MAX_BYTES))
        calibration = (document.get("int4") or {}).get("calibration")
        hashes = [] if calibration is None else calibration["document_sha256"]
        if not isinstance(hashes, list) or not all(isinstance(one, str) for one in hashes):
            raise TypeError
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise InputError(
            "is damaged, or does not say which documents the checkpoint was calibrated on",
            where=f"{candidate.location}/{MANIFEST}",
            fix="convert again with this version of truecast",
        ) from None
    return frozenset(hashes)


def _has_manifest(candidate: Checkpoint) -> bool:
    if candidate.local_path is not None:
        return (candidate.local_path / MANIFEST).is_file()
    try:
        candidate.opener(MANIFEST).close()
    except InputError:
        return False
    return True
