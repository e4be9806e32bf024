"""All documents of a corpus through a server, several at once; what is answered is kept and not asked again."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from truecast.audit.at_once import in_order
from truecast.audit.corpus import Corpus, Document
from truecast.audit.served_answers import Answer
from truecast.audit.served_client import Server, score_document
from truecast.checkpoint.writer import write_file
from truecast.errors import InputError

Told = Callable[[str, int, int], None]
"""Told ``(side, documents done, documents in all)``."""


def collect(
    server: Server,
    corpus: Corpus,
    top: int,
    folder: Path,
    side: str,
    *,
    at_once: int,
    told: Told | None = None,
    backwards: bool = False,
) -> list[Answer]:
    """Answers in the order of the corpus, kept in ``folder`` under the name ``side``. ``backwards``: the last is asked
    first, so that another pass makes other batches.

    Raises: InputError for what the server does not answer rightly; it says how many documents are kept.
    """
    documents = corpus.documents
    found = {i: a for i, d in enumerate(documents) if (a := _kept(_path(folder, side, i), d, top)) is not None}
    left = [i for i in range(len(documents)) if i not in found]
    if backwards:
        left.reverse()

    def ask(index: int) -> Answer:
        answer = score_document(server, documents[index], top)
        _keep(_path(folder, side, index), answer)
        return answer

    try:
        for index, answer in zip(left, in_order(ask, left, at_once), strict=True):
            found[index] = answer
            if told is not None:
                told(side, len(found), len(documents))
    except InputError as error:
        kept = sum(_path(folder, side, i).exists() for i in range(len(documents)))
        raise InputError(
            error.problem,
            where=error.where,
            fix="; ".join(
                w for w in (error.fix, f"{kept:,} of {len(documents):,} documents of the {side} are done") if w
            ),
        ) from None
    return [found[i] for i in range(len(documents))]


def check_context(server: Server, documents: Sequence[Document], where: str) -> None:
    """Raises: InputError naming the first document that the server cannot take whole, with the one token it makes."""
    if server.context is None:
        return
    for document in documents:
        if len(document.tokens) + 1 > server.context:
            raise InputError(
                f"document {document.id!r} has {len(document.tokens):,} tokens; {server.root} takes"
                f" {server.context:,}, one of them for its answer",
                where=where,
                fix="shorter documents (truecast corpus --max-tokens), or a server with a longer context",
            )


def _path(folder: Path, side: str, index: int) -> Path:
    return folder / f"{side}-{index:06d}.npz"


def _keep(path: Path, answer: Answer) -> None:
    data = io.BytesIO()
    np.savez(data, follows=answer.follows, ids=answer.ids, logprobs=answer.logprobs)
    write_file(path, data.getvalue())


def _kept(path: Path, document: Document, top: int) -> Answer | None:
    """What an earlier run kept; None where it is not there or not whole."""
    try:
        with np.load(path, allow_pickle=False) as file:
            answer = Answer(file["follows"], file["ids"], file["logprobs"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    shape = (document.scored, top)
    whole = answer.follows.shape == shape[:1] and answer.ids.shape == answer.logprobs.shape == shape
    kinds = answer.follows.dtype == answer.logprobs.dtype == np.float64 and answer.ids.dtype == np.int32
    return answer if whole and kinds and np.isfinite(answer.logprobs).all() else None
