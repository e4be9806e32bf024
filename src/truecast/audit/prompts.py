"""Prompts of a corpus: JSON Lines of messages, token ids or text, from anybody."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from truecast.audit.corpus import MAX_ID_CHARACTERS
from truecast.errors import InputError
from truecast.models.kimi_k3.chat import DEFAULT_EFFORT, render
from truecast.models.kimi_k3.tokenizer import K3Tokenizer
from truecast.models.text import Tokenizer

MAX_FILE_BYTES = 1 << 30
_FORMS = ("messages", "tokens", "text")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as token ids. ``id`` is given, or the number of its line."""

    id: str
    tokens: tuple[int, ...]


def read_prompts(path: Path, tokenizer: Tokenizer, vocab: int, limit: int | None) -> tuple[list[Prompt], str]:
    """The first ``limit`` prompts of a file, and the sha256 of the whole file.

    A line is an object with ``messages`` (and ``tools``, ``thinking``, ``effort`` where the chat format has them),
    ``tokens`` or ``text``, and perhaps an ``id``. Raises: InputError naming the line.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("is no regular file", where=str(path), fix="write the prompts to a file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"is larger than {MAX_FILE_BYTES} bytes", where=str(path))
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot open: {error.strerror}", where=str(path)) from None
    prompts: list[Prompt] = []
    names: set[str] = set()
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        if limit is not None and len(prompts) == limit:
            break
        where = f"{path}, line {number}"
        entry = _object(line, where)
        name = entry.get("id", f"line-{number}")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_ID_CHARACTERS or name in names:
            raise InputError(
                f"the id {short(name)} is no text of 1 to {MAX_ID_CHARACTERS} characters, or stands twice", where=where
            )
        names.add(name)
        try:
            tokens = _tokens(entry, tokenizer)
        except InputError as error:
            raise InputError(error.problem, where=f"{where}, {error.where}".rstrip(", "), fix=error.fix) from None
        if not tokens or not all(type(t) is int and 0 <= t < vocab for t in tokens):
            raise InputError(f"is empty, or has token ids outside the vocabulary of {vocab:,}", where=where)
        prompts.append(Prompt(name, tuple(tokens)))
    if not prompts:
        raise InputError("holds no prompt", where=str(path))
    return prompts, hashlib.sha256(raw).hexdigest()


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError("is no JSON", where=where) from None
    if not isinstance(entry, dict) or sum(form in entry for form in _FORMS) != 1:
        raise InputError("is no JSON object with one of messages, tokens and text", where=where)
    return entry


def _tokens(entry: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    if "tokens" in entry:
        if not isinstance(entry["tokens"], list):
            raise InputError("tokens is no list")
        return list(entry["tokens"])
    if "text" in entry:
        if not isinstance(entry["text"], str):
            raise InputError("text is no text")
        return tokenizer.encode(entry["text"])
    if not isinstance(tokenizer, K3Tokenizer):
        raise InputError("this checkpoint has no chat format that is known here", fix="give tokens or text")
    messages, tools, thinking = entry["messages"], entry.get("tools"), entry.get("thinking", True)
    if not isinstance(messages, list) or not isinstance(tools, list | None) or not isinstance(thinking, bool):
        raise InputError("messages or tools is no list, or thinking neither true nor false")
    return render(tokenizer, messages, tools, thinking=thinking, effort=entry.get("effort", DEFAULT_EFFORT))
