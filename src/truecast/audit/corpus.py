"""The documents of an audit: token ids from a JSON Lines file that may come from anybody.

The first line says with which tokenizer the ids were made; each further line is one document.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from truecast.errors import InputError

SCHEMA = "truecast.corpus/1"

MAX_LINE_BYTES = 64 << 20
"""A document of some eight million tokens: more is no document."""

MAX_ID_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Document:
    """One document. Shape: ``tokens`` ``[T]``, at least two.

    ``scored_from`` is the first position whose prediction of the next token is scored; the last position predicts
    nothing that is known, so positions ``scored_from`` to ``T - 2`` count.
    """

    id: str
    tokens: NDArray[np.int32]
    scored_from: int

    @property
    def scored(self) -> int:
        """How many positions count."""
        return len(self.tokens) - 1 - self.scored_from


@dataclass(frozen=True, slots=True)
class Corpus:
    """All documents, and what the file says of itself. ``sha256`` is of the whole file."""

    location: str
    tokenizer_sha256: str
    tokenizer_files: dict[str, str]
    source: Any
    documents: tuple[Document, ...]
    sha256: str

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return sum(len(d.tokens) for d in self.documents)


def read_corpus(path: Path, vocab: int, limit: int | None = None) -> Corpus:
    """Read and check a corpus; ``limit``: only its first documents.

    Raises: InputError naming the line, and where it applies the document and position: what is no JSON, an unknown
    schema, no documents, an empty document or one with nothing to score, an id given twice, a token id outside the
    model's ``vocab``.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe may never end, or never begin
            raise InputError("is no regular file", where=str(path), fix="make a corpus with `truecast corpus`")
        with path.open("rb") as file:
            return _read(file, path, vocab, limit)
    except OSError as error:
        raise InputError(f"cannot open: {error.strerror}", where=str(path)) from None


def check_counted_once(corpus: Corpus) -> None:
    """Documents are taken for independent draws; the same tokens twice would make every interval too short.

    Raises: InputError where positions that are scored in one document are scored in another, after the same tokens.
    """
    texts = [(document.tokens.astype(">i4").tobytes(), document) for document in corpus.documents]
    open_ones: list[tuple[bytes, Document]] = []
    for text, document in sorted(texts, key=lambda pair: pair[0]):  # after a text come those that begin with it
        while open_ones and not text.startswith(open_ones[-1][0]):
            open_ones.pop()
        for _, shorter in open_ones:
            if document.scored_from < len(shorter.tokens) - 1:
                raise InputError(
                    f"documents {shorter.id!r} and {document.id!r} hold the same tokens from the first on:"
                    " positions would count twice",
                    where=corpus.location,
                    fix="remove one of them",
                )
        open_ones.append((text, document))


def _read(file: BinaryIO, path: Path, vocab: int, limit: int | None) -> Corpus:
    digest = hashlib.sha256()
    lines = _lines(file, path, digest)
    first = next(lines, None)
    if first is None:
        raise InputError("is empty", where=str(path), fix="make a corpus with `truecast corpus`")
    header = _object(first, f"{path}, line 1")
    files = _check_header(header, path)
    documents: list[Document] = []
    ids: set[str] = set()
    for number, line in enumerate(lines, 2):
        if limit is not None and len(documents) == limit:
            continue  # still hashed
        document = _document(_object(line, f"{path}, line {number}"), f"{path}, line {number}", vocab)
        if document.id in ids:
            raise InputError(f"a second document has the id {short(document.id)}", where=f"{path}, line {number}")
        ids.add(document.id)
        documents.append(document)
    if not documents:
        raise InputError("holds no document", where=str(path), fix="make a corpus with `truecast corpus`")
    return Corpus(
        str(path), header["tokenizer_sha256"], files, header.get("source"), tuple(documents), digest.hexdigest()
    )


def _lines(file: BinaryIO, path: Path, digest: Any) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise InputError(
                f"is longer than {MAX_LINE_BYTES} bytes", where=f"{path}, line {number}", fix="split the document"
            )
        digest.update(line)
        yield line


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "not UTF-8, or no sensible JSON"
        raise InputError(f"is no JSON: {reason}", where=where) from None
    if not isinstance(value, dict):
        raise InputError("is no JSON object", where=where)
    return value


def _check_header(header: dict[str, Any], path: Path) -> dict[str, str]:
    where = f"{path}, line 1"
    if header.get("schema") != SCHEMA:
        raise InputError(
            f'the first line must be a header with "schema": "{SCHEMA}"',
            where=where,
            fix="make the corpus with `truecast corpus`",
        )
    sha = header.get("tokenizer_sha256")
    if not isinstance(sha, str) or len(sha) != 64:
        raise InputError("tokenizer_sha256 is no sha256 in hex", where=where)
    files = header.get("tokenizer_files", {})
    if not isinstance(files, dict) or not all(isinstance(v, str) for v in files.values()):
        raise InputError("tokenizer_files is no map from file name to sha256", where=where)
    return files


def _document(value: dict[str, Any], where: str, vocab: int) -> Document:
    name = value.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID_CHARACTERS:
        raise InputError(f'"id" is no text of 1 to {MAX_ID_CHARACTERS} characters', where=where)
    where = f"document {short(name)} in {where}"
    tokens = value.get("tokens")
    if not isinstance(tokens, list):
        raise InputError('"tokens" is no list', where=where)
    if len(tokens) < 2:
        what = "is empty" if not tokens else "has one token"
        raise InputError(f"{what}: at least two tokens are needed to score a prediction", where=where)
    for position, token in enumerate(tokens):
        if type(token) is not int:  # a bool is no token id
            raise InputError(f"the token at position {position} is no whole number", where=where)
        if not 0 <= token < vocab:
            raise InputError(
                f"token id {short(token)} at position {position} is outside the vocabulary of {vocab:,}",
                where=where,
                fix="make the corpus with this model's tokenizer",
            )
    start = value.get("scored_from", 0)
    if type(start) is not int or start < 0:
        raise InputError('"scored_from" is no whole number of at least 0', where=where)
    if start > len(tokens) - 2:
        raise InputError(
            f'nothing is scored: "scored_from" is {start}, and position {len(tokens) - 2} is the last that predicts a'
            " known token",
            where=where,
        )
    return Document(name, np.array(tokens, dtype=np.int32), start)
