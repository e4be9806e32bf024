"""Two candidates against one reference on the same tokens: the difference, document by document."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from truecast.audit.intervals import difference_figure
from truecast.audit.positions import Positions, load_positions
from truecast.errors import InputError
from truecast.statistics.clusters import by_document
from truecast.statistics.intervals import ratio_interval

SAME_NLL = 0.05
"""How far, in nats per token, a document's reference NLL may differ between two audits of the same tokens."""

SAME_RUN = "audit both candidates against the same reference on the same corpus, device and dtype"
"""The remedy where two audits do not belong together."""


def paired(a: Positions, b: Positions) -> dict[str, Any]:
    """KL of ``a`` less KL of ``b``, positive where ``a`` costs more.

    Keys: ``a`` and ``b`` (mean KLs), ``difference`` (:func:`difference_figure`), ``excludes_zero`` (None without an
    interval), ``ratio`` of the means and ``ratio_interval`` (None where one of them is 0, or for one document), which is
    the better figure where one costs several times the other.
    Units: nats per token. Raises: InputError where documents, positions or the reference's figures differ.
    """
    _check_same(a, b)
    difference = difference_figure(a.kl - b.kl, a.doc)
    interval = difference["interval"]
    sides = by_document(a.kl, a.doc), by_document(b.kl, b.doc)
    ratio = ratio_interval(*sides) if sides[0].count > 1 else None
    return {
        "a": sides[0].mean,
        "b": sides[1].mean,
        "ratio": sides[0].mean / sides[1].mean if sides[1].mean > 0 else None,
        "ratio_interval": None if ratio is None else list(ratio),
        "difference": difference,
        "excludes_zero": None if interval is None else not interval[0] <= 0 <= interval[1],
    }


def paired_folders(a: Path, b: Path) -> dict[str, Any]:
    """The same from two output folders of ``truecast audit``, with both candidates, and how they were run, as ``candidates``.

    Reads ``audit.json`` and ``positions/*.npy``; nothing is unpickled.
    Raises: InputError where a file is missing or malformed, or corpora or references differ.
    """
    documents = [scored_document(folder) for folder in (a, b)]
    for what, (one, other) in compared(*documents).items():
        if one != other:
            raise InputError(f"{what}: {one} against {other}", where=f"{a} and {b}", fix=SAME_RUN)
    sides = [load_positions(folder / "positions") for folder in (a, b)]
    for folder, document, positions in zip((a, b), documents, sides, strict=True):
        _check_theirs(folder, document, positions)
    result = paired(*sides)
    return {"candidates": [_candidate(document) for document in documents], **result}


def _candidate(document: dict[str, Any]) -> dict[str, Any]:
    """Which checkpoint, and what serving was taken to round."""
    found = document.get("candidate")
    rounded = {key: str(document.get(key, "none")) for key in ("activations", "kv")}
    return {**(found if isinstance(found, dict) else {}), **rounded}


def scored_document(folder: Path) -> dict[str, Any]:
    """``audit.json`` of a finished audit that scored positions. Raises: InputError where there is none, or it did not."""
    document = _read(folder / "audit.json")
    if document.get("identical"):
        raise InputError(
            "the weights were found identical, so no position was scored",
            where=str(folder),
            fix="audit with --force",
        )
    return document


def compared(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What two audits must have in common, as each has it; where a copy of the reference or corpus lay is no matter."""

    def of(key: str, field: str) -> tuple[Any, Any]:
        a, b = (v.get(field) if isinstance(v, dict) else v for v in (one.get(key), other.get(key)))
        return a, b

    return {
        "reference": of("reference", "fingerprint"),
        "reference's weights": of("reference", "weights"),
        "corpus": of("corpus", "sha256"),
        "limit of documents": of("corpus", "limit"),
        "device": (one.get("device"), other.get("device")),
        "dtype": (one.get("dtype"), other.get("dtype")),
        "estimator": (one.get("estimator"), other.get("estimator")),  # an exact audit has none
    }


def _check_theirs(folder: Path, document: dict[str, Any], positions: Positions) -> None:
    figure = document.get("kl")
    mean = figure.get("mean") if isinstance(figure, dict) else None
    ours = float(positions.kl.mean()) if len(positions) else 0.0
    if not isinstance(mean, (int, float)) or not math.isclose(mean, ours, rel_tol=1e-9):
        raise InputError(
            f"are not those of audit.json: their mean KL is {ours:.6g}, its is {mean}",
            where=str(folder / "positions"),
            fix="run the audit again",
        )


def _check_same(a: Positions, b: Positions) -> None:
    if not len(a) or not len(b):
        raise InputError("no position was scored", fix="give documents with more than one token")
    if len(a) != len(b) or not np.array_equal(a.doc, b.doc):
        raise InputError(f"the documents differ: {len(a):,} and {len(b):,} positions", where="doc.npy", fix=SAME_RUN)
    if not np.array_equal(a.pos, b.pos):
        raise InputError("other positions were scored", where="pos.npy", fix=SAME_RUN)
    documents, index = np.unique(a.doc, return_inverse=True)
    apart = np.bincount(index, weights=np.abs(a.nll_ref - b.nll_ref)) / np.bincount(index)
    worst = int(apart.argmax())
    if apart[worst] > SAME_NLL:
        raise InputError(
            f"the reference's NLL in document {documents[worst]} differs by {apart[worst]:.3g} nats per token:"
            " other tokens, or another reference",
            where="nll_ref.npy",
            fix=SAME_RUN,
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix="name the output folder of a finished audit") from None
    except (OSError, ValueError) as error:
        raise InputError(f"not readable: {error}", where=str(path), fix="run the audit again") from None
    if not isinstance(document, dict):
        raise InputError("not an audit's document", where=str(path), fix="run the audit again")
    return document
