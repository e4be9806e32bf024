"""The document of an audit through servers: what it says, what makes two runs one, and what is saved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truecast import __version__
from truecast.audit.corpus import Corpus
from truecast.audit.document import SCHEMA
from truecast.audit.resume import Folder
from truecast.audit.served_client import Server
from truecast.audit.served_figures import NAMES, Compared, figures


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """``top``: how many of the most probable tokens to ask for. ``at_once``: requests at a time. ``limit``: only the first
    documents. ``device``, ``memory``: of the reference's checkpoint, as in :class:`truecast.audit.options.Options`.
    ``command``: the words of the command line, for the record."""

    top: int = 20
    at_once: int = 4
    limit: int | None = None
    device: str = "auto"
    memory: int | None = None
    command: Sequence[str] = ()


def head(
    servers: dict[str, Server], reference: dict[str, Any], corpus: Corpus, options: ServedOptions, tokenizer: str
) -> dict[str, Any]:
    """What was asked, of whom, about what. ``reference``: the reference's side; ``tokenizer``: what the probe found."""
    return {
        "schema": SCHEMA,
        "truecast": __version__,
        "command": list(options.command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "estimator": {"top": options.top, "unit": "document"},
        "reference": reference,
        "candidate": servers["candidate"].document(),
        "native": servers["native"].document() if "native" in servers else None,
        "tokenizer": tokenizer,
        "corpus": {
            "location": corpus.location,
            "sha256": corpus.sha256,
            "tokenizer_sha256": corpus.tokenizer_sha256,
            "documents": len(corpus.documents),
            "tokens": corpus.tokens,
            "scored": sum(d.scored for d in corpus.documents),
            "limit": options.limit,
        },
    }


def identity(document: dict[str, Any], servers: dict[str, Server], reference: str) -> dict[str, Any]:
    """What must agree for a stopped run to go on. A server may have moved to another address."""
    return {
        "kind": "audit of a server",
        "reference": reference,
        "candidate": servers["candidate"].identity,
        "native server": servers["native"].identity if "native" in servers else None,
        "corpus": document["corpus"]["sha256"],
        "limit": document["corpus"]["limit"],
        "top": document["estimator"]["top"],
        "device": document["device"],
        "dtype": document["dtype"],
        "version": __version__,
    }


def finished(
    document: dict[str, Any],
    folder: Folder,
    corpus: Corpus,
    cand: Compared,
    floor: Compared | None,
    how: str | None,
    began: float,
) -> dict[str, Any]:
    """Figures, positions and the end of the folder."""
    documents = corpus.documents
    doc = np.repeat(np.arange(len(documents), dtype=np.int32), [d.scored for d in documents])
    pos = np.concatenate([np.arange(d.scored_from, len(d.tokens) - 1, dtype=np.int32) for d in documents])
    sampled = document["sampled"]["from_reference"] is True
    found = figures(cand, floor, doc, pos, [d.id for d in documents], sampled)
    name = "estimate" if sampled else "lower"
    document["estimator"] |= {"name": name, "kl": NAMES[name], "floor": how}
    if found["floor"] is not None:
        found["floor"] = {**found["floor"], "how": how}
    document |= found
    document["warnings"] = _warnings(document, cand)
    document["seconds"] = time.monotonic() - began
    _save(folder.out / "positions", doc, pos, cand, floor)
    folder.finish(document)
    return document


def _warnings(document: dict[str, Any], cand: Compared) -> list[str]:
    found = [document["kl"]["warning"]] if document["kl"].get("warning") else []
    if document["sampled"]["from_reference"] and document["covered"]["as_drawn"] is False:
        found.append(
            "the text does not look drawn from the reference: of its tokens"
            f" {document['covered']['following']:.2%} are among the most probable ones, which have"
            f" {document['covered']['mean']:.2%} of its probability"
        )
    worst = float((cand.nll_cand - cand.nll_ref).mean())
    if worst > 3:
        found.append(
            f"the server finds each token {worst:.1f} nats less likely than the reference: is it the same model?"
        )
    return found


def _save(folder: Path, doc: NDArray[np.int32], pos: NDArray[np.int32], cand: Compared, floor: Compared | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"doc": doc, "pos": pos, "nll_ref": cand.nll_ref, "nll_cand": cand.nll_cand}
    arrays["same_top"] = cand.same_top
    for prefix, side in (("", cand), ("floor-", floor)):
        if side is not None:
            names = ("log_ratio", "estimate", "lower", "tail")
            arrays |= {prefix + name: getattr(side.estimates, name) for name in names}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
