"""Which tokenizer a checkpoint has, and what ends its text: what a server or a corpus needs besides the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.models.kimi_k3.chat import END_OF_MESSAGE
from truecast.models.kimi_k3.tokenizer import RANKS_FILE, K3Tokenizer, load_tokenizer
from truecast.models.tokenizer_json import TOKENIZER_JSON, JsonTokenizer, load_tokenizer_json


class Stream(Protocol):
    """Decodes ids that come one at a time."""

    def feed(self, token: int) -> str:
        """Text that this id completes."""

    def finish(self) -> str:
        """The rest."""


class Tokenizer(Protocol):
    """What every tokenizer here offers."""

    vocab: int

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of ids."""

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one id."""

    def stream(self) -> Stream:
        """A decoder for ids that come one at a time."""


def tokenizer_of(checkpoint: Checkpoint) -> K3Tokenizer | JsonTokenizer:
    """The checkpoint's own tokenizer. Raises: InputError if it has none that is known here."""
    if RANKS_FILE in checkpoint.auxiliary:
        return load_tokenizer(checkpoint.opener, checkpoint.location)
    if TOKENIZER_JSON in checkpoint.auxiliary:
        return load_tokenizer_json(checkpoint.opener, checkpoint.location)
    raise InputError(
        f"has neither {RANKS_FILE} nor {TOKENIZER_JSON}", where=checkpoint.location, fix="download the tokenizer too"
    )


def stop_ids(config: Mapping[str, Any], tokenizer: K3Tokenizer | JsonTokenizer) -> frozenset[int]:
    """Ids that end a text: the config's ``eos_token_id``, and Kimi-K3's end of a message.

    K3's tokenizer calls another token its end; the model ends its turns with ``<|end_of_msg|>``.
    """
    found: set[int] = set()
    if isinstance(tokenizer, K3Tokenizer):
        found.add(tokenizer.special(END_OF_MESSAGE))
    for block in (config, config.get("text_config")):
        ids = block.get("eos_token_id") if isinstance(block, Mapping) else None
        found |= {i for i in (ids if isinstance(ids, list) else [ids]) if type(i) is int}
    return frozenset(found)


def context_length(config: Mapping[str, Any], where: str) -> int:
    """Tokens that prompt and answer may have together. Raises: InputError if config.json does not say."""
    for block in (config.get("text_config"), config):
        length = block.get("max_position_embeddings") if isinstance(block, Mapping) else None
        if type(length) is int and length > 0:
            return length
    raise InputError("says no max_position_embeddings", where=f"{where}/config.json")
