"""Tokenizers that come as one ``tokenizer.json`` (SmolLM2), through the package ``tokenizers``; nothing is executed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from truecast.checkpoint.files import Opener
from truecast.errors import InputError

TOKENIZER_JSON = "tokenizer.json"
MAX_BYTES = 64 << 20
_UNFINISHED = "\ufffd"


class JsonTokenizer:
    """Text to ids and back. The spelling of a special token in a text is that token, as this package has it."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.vocab = int(backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of a text, none added. Half a surrogate pair becomes U+FFFD."""
        sound = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
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
        return str(self._backend.decode(tokens, skip_special_tokens=False)) if tokens else ""


class JsonStream:
    """Ids in, text out as soon as it is complete characters."""

    def __init__(self, tokenizer: JsonTokenizer) -> None:
        self._tokenizer = tokenizer
        self._held: list[int] = []

    def feed(self, token: int) -> str:
        """Text that this id completes; may be empty."""
        self._held.append(token)
        text = self._tokenizer.decode(self._held)
        if text.endswith(_UNFINISHED) and len(self._held) < 4:  # no character is longer than four bytes
            return ""
        self._held = []
        return text

    def finish(self) -> str:
        """The rest; the stream can be used again."""
        text, self._held = self._tokenizer.decode(self._held), []
        return text


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
    try:
        return JsonTokenizer(tokenizers.Tokenizer.from_buffer(raw))
    except Exception as error:  # the package raises plain Exception (ValueError in some versions)
        raise InputError(f"is no tokenizer: {error}", where=where, fix="download it again") from None
