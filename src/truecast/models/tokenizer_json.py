"""Tokenizers that come as one ``tokenizer.json`` (SmolLM2), through the package ``tokenizers``; nothing is executed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from truecast.checkpoint.files import Opener
from truecast.errors import InputError

TOKENIZER_JSON = "tokenizer.json"
MAX_BYTES = 64 << 20
MAX_GROWTH = 64
"""How many times longer the replacements of a tokenizer may make a text."""
_UNFINISHED = "\ufffd"


class JsonTokenizer:
    """Text to ids and back. The spelling of a special token in a text is that token, as this package has it."""

    def __init__(self, backend: Any) -> None:
        backend.no_truncation()  # settings for training and batches, which would cut a text, or pad it
        backend.no_padding()
        self._backend = backend
        self.vocab = int(backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of a text, none added. Half a surrogate pair becomes U+FFFD. Raises: InputError where the package fails."""
        sound = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        with _explained(TOKENIZER_JSON, "cannot encode this text"):
            return list(self._backend.encode(sound, add_special_tokens=False).ids)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of ids, specials spelled out; an id that the vocabulary lacks is U+FFFD."""
        out, run = "", list[int]()
        for token in tokens:
            if 0 <= token < self.vocab:
                run.append(token)
            else:
                out, run = out + self._text(run) + _UNFINISHED, []
        return out + self._text(run)

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one id's text; of part of a character, those of U+FFFD."""
        return self.decode([token]).encode()

    def stream(self) -> JsonStream:
        """A decoder for ids that come one at a time."""
        return JsonStream(self)

    def _text(self, tokens: list[int]) -> str:
        if not tokens:
            return ""
        try:
            with _explained(TOKENIZER_JSON, "cannot decode"):
                return str(self._backend.decode(tokens, skip_special_tokens=False))
        except InputError:
            return _UNFINISHED


class JsonStream:
    """Ids in, text out as soon as it is complete characters."""

    def __init__(self, tokenizer: JsonTokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        """The last ids that were shown: some tokenizers drop a blank at the beginning of a text."""
        self._held: list[int] = []

    def feed(self, token: int) -> str:
        """Text that this id completes; may be empty."""
        self._held.append(token)
        text = self._tokenizer.decode(self._shown + self._held)
        return "" if text.endswith(_UNFINISHED) else self._show(text)

    def finish(self) -> str:
        """The rest; the stream can be used again."""
        return self._show(self._tokenizer.decode(self._shown + self._held)) if self._held else ""

    def _show(self, text: str) -> str:
        before = self._tokenizer.decode(self._shown)
        self._shown, self._held = self._held, []
        return text[len(before) :]


def load_tokenizer_json(opener: Opener, location: str) -> JsonTokenizer:
    """The tokenizer of ``tokenizer.json``. Raises: InputError if it is too large or no tokenizer."""
    where = f"{location}/{TOKENIZER_JSON}"
    try:
        import tokenizers
    except ImportError:
        raise InputError("needs the package tokenizers", where=where, fix="pip install 'truecast[serve]'") from None
    file = opener(TOKENIZER_JSON)
    try:
        if file.size > MAX_BYTES:
            raise InputError(f"{file.size} bytes are more than {MAX_BYTES}", where=where)
        raw = bytes(file.read(0, file.size))
    finally:
        file.close()
    _check_growth(raw, where)
    with _explained(where, "is no tokenizer"):
        return JsonTokenizer(tokenizers.Tokenizer.from_buffer(raw))


@contextmanager
def _explained(where: str, problem: str) -> Iterator[None]:
    """Turns what the package raises into an InputError; a panic of its Rust code is no Exception."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{problem}: {error}", where=where, fix="download it again") from None


def _check_growth(raw: bytes, where: str) -> None:
    """Raises: InputError where replacements, one after another, make a text so long that memory ends.

    The package ends the process then: nothing could be told.
    """
    try:
        document = json.loads(raw)
        steps = [document.get(part) for part in ("normalizer", "decoder")] if isinstance(document, dict) else []
        growth = math.prod(map(_growth, _steps(steps)))
    except (ValueError, RecursionError):
        raise InputError("is no tokenizer: it is no JSON", where=where, fix="download it again") from None
    if growth > MAX_GROWTH:
        raise InputError(
            f"its replacements may make a text {growth:,} times longer", where=where, fix="do not trust this checkpoint"
        )


def _steps(block: Any) -> Iterator[dict[str, Any]]:
    """The objects of normalizer and decoder, nested ones after what they stand in."""
    if isinstance(block, dict):
        yield block
        block = list(block.values())
    if isinstance(block, list):
        for inner in block:
            yield from _steps(inner)


def _growth(step: dict[str, Any]) -> int:
    """By how much one replacement lengthens a text; a pattern that matches between characters adds to each of them."""
    content = step.get("content")
    return max(1, len(content)) if isinstance(content, str) else 1
