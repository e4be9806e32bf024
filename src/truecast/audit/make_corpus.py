"""Making on-policy documents: what the model itself goes on with after prompts, sampled here or by a server."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from truecast.audit.at_once import in_order
from truecast.audit.completions_client import continuation, served_model
from truecast.audit.corpus import SCHEMA
from truecast.audit.prompts import Prompt, read_prompts
from truecast.errors import InputError, RefusedError
from truecast.models.base import Decoder
from truecast.models.generate import Resident
from truecast.models.open import open_model
from truecast.models.sampling import Sampler
from truecast.models.text import context_length, stop_ids, tokenizer_of
from truecast.models.tokenizer_hash import tokenizer_files, tokenizer_sha256

REQUESTS_AT_ONCE = 16
PARTIAL = ".partial"

Continue = Callable[[Prompt, int, int], list[int]]
"""``(prompt, most tokens, seed)`` -> the ids that follow."""


def make_corpus(
    location: str,
    prompts: Path,
    out: Path,
    *,
    url: str | None = None,
    device: str = "cpu",
    max_tokens: int = 512,
    temperature: float = 1.0,
    seed: int = 0,
    limit: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Write a corpus of one document a prompt to ``out``; returns what it holds.

    The checkpoint at ``location`` gives tokenizer and vocabulary, and the model unless ``url`` names a server. Prompt
    ``n`` is sampled with ``seed + n``. Runs again after an interruption: complete documents stay.
    Raises: InputError for bad prompts or a bad answer; RefusedError if ``out`` exists, or a part of another corpus.
    """
    if out.exists():
        raise RefusedError("exists", where=str(out), fix="remove it, or write elsewhere")
    model = open_model(location, device=device)
    checkpoint = model.checkpoint
    tokenizer = tokenizer_of(checkpoint)
    wanted, sha = read_prompts(prompts, tokenizer, model.vocab, limit)
    context = context_length(checkpoint.config, location)
    for prompt in wanted:
        if len(prompt.tokens) >= context:
            raise InputError(
                f"{len(prompt.tokens)} tokens leave no room in a context of {context}", where=f"{prompts}, {prompt.id}"
            )
    name = served_model(url) if url is not None else None
    files = tokenizer_files(checkpoint)
    source = {
        "checkpoint": checkpoint.fingerprint(),
        "weights": checkpoint.weights_sha256(),
        "server": name,
        "prompts_sha256": sha,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    header = {
        "schema": SCHEMA,
        "tokenizer_sha256": tokenizer_sha256(files),
        "tokenizer_files": files,
        "vocab": model.vocab,
        "source": source,
    }
    partial_path = out.with_name(out.name + PARTIAL)
    with _alone(partial_path, out):
        done = _resume(partial_path, header)
        left = wanted[len(done) :]
        if [p.id for p in wanted[: len(done)]] != done:
            raise RefusedError("holds other documents", where=str(partial_path), fix="remove it")
        if url is not None and name is not None:
            going_on: Continue = partial(_from_server, url, name, temperature)
        else:
            going_on = _from_model(model, stop_ids(checkpoint.config, tokenizer), temperature) if left else _nothing
        room = [min(max_tokens, context - len(p.tokens)) for p in left]
        seeds = range(seed + len(done), seed + len(wanted))
        made = 0
        try:
            with partial_path.open("a", encoding="ascii") as file:
                tasks = list(zip(left, room, seeds, strict=True))
                answers = in_order(lambda task: going_on(*task), tasks, REQUESTS_AT_ONCE if url else 1)
                for number, (prompt, answer) in enumerate(zip(left, answers, strict=True), len(done) + 1):
                    if any(not 0 <= t < model.vocab for t in answer):
                        raise InputError("gives token ids outside the vocabulary", where=url or location)
                    _write(file, prompt, answer)
                    made += len(answer)
                    progress(number, len(wanted))
                file.flush()
                os.fsync(file.fileno())
            partial_path.replace(out)
        except OSError as error:
            raise RefusedError(f"cannot write: {error.strerror}", where=str(partial_path)) from None
    told = {key: header[key] for key in ("tokenizer_sha256", "tokenizer_files", "vocab", "source")}
    return {"out": str(out), "documents": len(wanted), "kept": len(done), "made_tokens": made, **told}


@contextmanager
def _alone(path: Path, out: Path) -> Iterator[None]:
    """Hold the lock of the part. Raises: RefusedError where another run holds it, or has just finished."""
    try:
        held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RefusedError(f"cannot write: {error.strerror}", where=str(path)) from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError("another run is writing it", where=str(path), fix="wait for it to end") from None
        if out.exists():
            raise RefusedError("exists", where=str(out), fix="remove it, or write elsewhere")
        yield
    finally:
        os.close(held)


def _write(file: TextIO, prompt: Prompt, answer: Sequence[int]) -> None:
    """One line. The last token of the prompt predicts the first of the answer: scoring begins there."""
    document = {"id": prompt.id, "tokens": [*prompt.tokens, *answer], "scored_from": len(prompt.tokens) - 1}
    file.write(json.dumps(document, separators=(",", ":")) + "\n")
    file.flush()


def _resume(path: Path, header: dict[str, Any]) -> list[str]:
    """Ids of the documents that are complete in the part of an earlier run; a line cut short is taken off."""
    try:
        raw = path.read_bytes() if path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines:
            path.write_text(json.dumps(header) + "\n", encoding="ascii")
            return []
        if json.loads(lines[0]) != header:
            raise RefusedError("is part of another corpus", where=str(path), fix="remove it, or write elsewhere")
        if len(whole) < len(raw):
            os.truncate(path, len(whole))
        return [str(json.loads(line)["id"]) for line in lines[1:]]
    except OSError as error:
        raise RefusedError(f"cannot write: {error.strerror}", where=str(path)) from None
    except (ValueError, KeyError, TypeError):
        raise RefusedError("is no part of a corpus", where=str(path), fix="remove it, or write elsewhere") from None


def _from_server(url: str, name: str, temperature: float, prompt: Prompt, room: int, seed: int) -> list[int]:
    return continuation(url, name, prompt.tokens, max_tokens=room, temperature=temperature, seed=seed)


def _from_model(model: Decoder, stops: frozenset[int], temperature: float) -> Continue:
    resident = Resident(model)

    def going_on(prompt: Prompt, room: int, seed: int) -> list[int]:
        session, sampler = resident.session(), Sampler(temperature, seed=seed)
        answer: list[int] = []
        logits = session.extend(list(prompt.tokens))
        while True:
            answer.append(sampler.pick(logits))
            if len(answer) == room or answer[-1] in stops:
                return answer
            logits = session.extend(answer[-1:])

    return going_on


def _nothing(prompt: Prompt, room: int, seed: int) -> list[int]:
    raise AssertionError("no prompt is left")
