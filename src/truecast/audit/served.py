"""The audit of a running server: what it gives a corpus's tokens, against the reference's checkpoint or its server."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from truecast.audit.audit import check_tile
from truecast.audit.corpus import Corpus, check_counted_once, read_corpus
from truecast.audit.memory import fit, return_freed_memory
from truecast.audit.needs import needs_of
from truecast.audit.pairing import check_corpus
from truecast.audit.place import device_of, dtype_of
from truecast.audit.resume import Folder
from truecast.audit.served_answers import Answer
from truecast.audit.served_client import Server
from truecast.audit.served_collect import Told, check_context, collect
from truecast.audit.served_document import ServedOptions, finished, head, identity
from truecast.audit.served_figures import Compared, compare, joined
from truecast.audit.served_origin import check_probe, origin
from truecast.audit.served_reference import look_up
from truecast.audit.stream import Progress
from truecast.errors import InputError
from truecast.models import open_model

NO_VOCABULARY = 1 << 31
"""Without a checkpoint the size of the vocabulary is not known; the servers refuse what lies outside theirs."""

Connect = Callable[[str], Server]
"""Asks the server at an address what it is. Raises: InputError."""


def is_address(reference: str) -> bool:
    """Is the reference a server, not a checkpoint?"""
    return reference.startswith(("http://", "https://"))


def audit_server(
    url: str,
    reference: str,
    native: str | None,
    corpus: Path,
    out: Path | None,
    options: ServedOptions,
    connect: Connect,
    told: Told | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Audit the server at ``url`` against ``reference``, a checkpoint or the address of a server of it.

    ``native``: with a checkpoint, the address of a server of it, whose distance from the checkpoint is the noise floor.
    Without a checkpoint the reference's server is asked twice, and its distance from itself is the floor. ``out`` keeps
    each answered document, so that a stopped run goes on; None keeps nothing. Returns a ``truecast.audit/1`` document.
    Raises: InputError for what does not belong together or a server that does not answer rightly; RefusedError where
    memory or disk is too small, or ``out`` belongs to another audit.
    """
    with ExitStack() as stack:
        path = out if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="truecast-")))
        addresses = {"candidate": url}
        if is_address(reference):
            addresses["reference"] = reference
            return _with_server(stack, path, addresses, corpus, options, connect, told)
        if native is not None:
            addresses["native"] = native
        return _with_checkpoint(stack, path, addresses, reference, corpus, options, connect, told, progress)


def _with_server(
    stack: ExitStack,
    path: Path,
    addresses: dict[str, str],
    corpus: Path,
    options: ServedOptions,
    connect: Connect,
    told: Told | None,
) -> dict[str, Any]:
    began = time.monotonic()
    servers = {side: connect(address) for side, address in addresses.items()}
    documents = _documents(corpus, NO_VOCABULARY, options, servers)
    tokenizer = check_probe(servers, None)
    ref = servers["reference"]
    document = head(servers, ref.document(), documents, options, tokenizer)
    document |= {"device": None, "dtype": None, "sampled": origin(documents, server=ref.model)}
    folder = stack.enter_context(Folder(path, identity(document, servers, ref.identity), {}))
    if (done := folder.result()) is not None:
        return done
    answers = _collected(servers, documents, options, folder, told)
    again = collect(
        ref,
        documents,
        options.top,
        folder.answers,
        "reference-again",
        at_once=options.at_once,
        told=told,
        backwards=True,
    )
    _check_same(servers, addresses, connect)
    best = [a.ids[np.arange(len(a.ids)), a.logprobs.argmax(1)] for a in answers["reference"]]
    cand = _compared(answers["reference"], best, answers["candidate"], documents)
    floor = _compared(answers["reference"], best, again, documents)
    how = "the reference's server against itself, asked a second time in reverse order"
    return finished(document, folder, documents, cand, floor, how, began)


def _with_checkpoint(
    stack: ExitStack,
    path: Path,
    addresses: dict[str, str],
    location: str,
    corpus: Path,
    options: ServedOptions,
    connect: Connect,
    told: Told | None,
    progress: Progress | None,
) -> dict[str, Any]:
    began = time.monotonic()
    device = device_of(options.device)
    model = open_model(location, device=str(device))
    stamps = model.checkpoint.stamps()
    servers = {side: connect(address) for side, address in addresses.items()}
    documents = _documents(corpus, model.vocab, options, servers)
    check_corpus(model, documents)
    if options.top > model.vocab:
        raise InputError(f"is more than the vocabulary of {model.vocab:,}", where=f"--top {options.top}")
    tokenizer = check_probe(servers, model.checkpoint)
    return_freed_memory()
    dtype = dtype_of(device)
    sizes = fit(options.memory, needs_of((model,), documents, dtype, device), device)
    own = {
        "location": model.checkpoint.location,
        "fingerprint": model.checkpoint.fingerprint(),
        "weights": model.checkpoint.weights_sha256(),
    }
    document = head(servers, own, documents, options, tokenizer)
    document |= {"device": device.type, "dtype": str(dtype).removeprefix("torch.")}
    document["sampled"] = origin(documents, checkpoint=own)
    whose = f"{own['fingerprint']} {own['weights']} {sorted(stamps.items())}"
    folder = stack.enter_context(Folder(path, identity(document, servers, whose), {"tile_tokens": sizes.tile_tokens}))
    if (done := folder.result()) is not None:
        return done
    check_tile(folder.chosen["tile_tokens"], sizes, path)
    answers = _collected(servers, documents, options, folder, told)
    _check_same(servers, addresses, connect)
    sides = [side for side in ("candidate", "native") if side in answers]
    ids = np.concatenate([np.concatenate([a.ids for a in answers[side]]) for side in sides], axis=1)
    looked = look_up(model, stamps, documents, ids, folder, sizes, (device, dtype), progress)
    document["read"] = {"bytes": looked.read}
    ends = np.cumsum([d.scored for d in documents.documents])[:-1]
    best = np.split(looked.best, ends)
    against = {}
    for number, side in enumerate(sides):
        at = looked.at[:, number * options.top : (number + 1) * options.top]
        ours = [
            Answer(follows, theirs.ids, logprobs)
            for follows, theirs, logprobs in zip(
                np.split(looked.follows, ends), answers[side], np.split(at, ends), strict=True
            )
        ]
        against[side] = _compared(ours, best, answers[side], documents)
    how = "the native weights' server against the reference's checkpoint" if "native" in against else None
    return finished(document, folder, documents, against["candidate"], against.get("native"), how, began)


def _documents(corpus: Path, vocabulary: int, options: ServedOptions, servers: dict[str, Server]) -> Corpus:
    documents = read_corpus(corpus, vocabulary, options.limit)
    check_counted_once(documents)
    for server in servers.values():
        check_context(server, documents.documents, str(corpus))
    return documents


def _collected(
    servers: dict[str, Server], documents: Corpus, options: ServedOptions, folder: Folder, told: Told | None
) -> dict[str, list[Answer]]:
    return {
        side: collect(server, documents, options.top, folder.answers, side, at_once=options.at_once, told=told)
        for side, server in servers.items()
    }


def _check_same(servers: dict[str, Server], addresses: dict[str, str], connect: Connect) -> None:
    """Raises: InputError where a server is not what it was when the run began."""
    for side, address in addresses.items():
        now = connect(address)
        if now.identity != servers[side].identity:
            raise InputError(
                "is another server, or started with other arguments, than when this run began",
                where=address,
                fix="answers of two servers cannot be told apart: choose another --out and start again",
            )


def _compared(ref: list[Answer], best: Sequence[Any], cand: list[Answer], documents: Corpus) -> Compared:
    follows = [d.tokens[d.scored_from + 1 :] for d in documents.documents]
    return joined([compare(*four) for four in zip(ref, best, cand, follows, strict=True)])
