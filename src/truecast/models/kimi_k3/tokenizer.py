"""Kimi-K3's tokenizer: byte-pair ranks in ``tiktoken.model``, 256 special slots above them, and K3's word pattern.

The folder is an untrusted download: its files are read within size limits and checked, and the tokenization code that
lies next to them is never run. Sources of the rules: Kimi-K3's published tokenizer_config.json and its description.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from truecast.checkpoint.files import LocalOpener, Opener, read_whole
from truecast.errors import InputError

RANKS_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_SLOTS = 256
"""Ids reserved above the ranks, named or not."""

MAX_RANKS_BYTES = 64 << 20
MAX_CONFIG_BYTES = 4 << 20
MAX_RANKS = 1 << 21
MAX_TOKEN_BYTES = 4096
"""Of one token, special or not: nothing that a model learned is longer."""
CHUNK_CHARS = 400_000
"""Text is cut here before it is split into words: what the published tokenizer does, so ids near a cut agree."""
RUN_CHARS = 25_000
"""A run of blanks, or of anything else, is cut here (same reason)."""

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LEAD, _CONTRACTION = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS = "|".join(
    (
        r"[\p{Han}]+",
        f"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Pattern of one word before byte-pair merging, in the syntax of Rust's regex (``&&`` intersects classes)."""

_RUN = re.compile(r"\s+|\S+")


class K3Tokenizer:
    """Text to ids and back. ``base`` ranks come first, then :data:`SPECIAL_SLOTS` special ids; ``vocab`` is both.

    Raises: InputError where ``ranks`` are not 0..n-1 over distinct tokens, lack a byte, or names of specials clash.
    """

    def __init__(self, ranks: Mapping[bytes, int], names: Mapping[int, str], where: str = RANKS_FILE) -> None:
        try:
            import tiktoken
        except ImportError:
            raise InputError(
                "Kimi-K3's tokenizer needs the package tiktoken", where=where, fix="pip install 'truecast[serve]'"
            ) from None

        self.base = len(ranks)
        self.vocab = self.base + SPECIAL_SLOTS
        _check_ranks(ranks, where)
        for slot in names:
            if not self.base <= slot < self.vocab:
                raise InputError(
                    f"names special token {slot}, but {self.base} ranks put the specials at {self.base} to"
                    f" {self.vocab - 1}",
                    where=where,
                    fix=f"{RANKS_FILE} and {CONFIG_FILE} must be of one release: download both again",
                )
        spelled = [names.get(i, f"<|reserved_token_{i}|>") for i in range(self.base, self.vocab)]
        self.specials = dict(zip(spelled, range(self.base, self.vocab), strict=True))
        """Spelling -> id of all 256 slots."""
        if len(self.specials) != SPECIAL_SLOTS or "" in self.specials:
            raise InputError("gives two special tokens one name, or one an empty name", where=where)
        if longest := next((t for t in (*ranks, *map(str.encode, spelled)) if len(t) > MAX_TOKEN_BYTES), None):
            raise InputError(
                f"has a token of {len(longest):,} bytes; {MAX_TOKEN_BYTES:,} are the most",
                where=where,
                fix="do not trust this checkpoint",
            )
        try:
            self._encoding = tiktoken.Encoding(
                RANKS_FILE, pat_str=WORDS, mergeable_ranks=dict(ranks), special_tokens=self.specials
            )
        except ValueError as error:
            raise InputError(f"makes no tokenizer: {error}", where=where, fix="download it again") from None

    def special(self, spelling: str) -> int:
        """Id of a special token. Raises: InputError if this vocabulary names none so."""
        found = self.specials.get(spelling)
        if found is None:
            raise InputError(
                f"names no special token {spelling}", where=CONFIG_FILE, fix="is this Kimi-K3's tokenizer?"
            )
        return found

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text: the spelling of a special token becomes ordinary ids like any other text.

        Half a surrogate pair, which no UTF-8 can hold, becomes U+FFFD.
        """
        return [i for piece in _pieces(text) for i in self._encoding.encode_ordinary(piece)]

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one id; a special one's are its spelling. U+FFFD for an id that the vocabulary lacks."""
        if not 0 <= token < self.vocab:
            return "\ufffd".encode()
        return self._encoding.decode_single_token_bytes(token)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of ids, specials spelled out; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(t) for t in tokens).decode("utf-8", "replace")

    def stream(self) -> TextStream:
        """A decoder for ids that come one at a time."""
        return TextStream(self)


class TextStream:
    """Ids in, text out as soon as it is complete characters; ``finish`` gives what an unfinished one decodes to."""

    def __init__(self, tokenizer: K3Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Text that this id completes; may be empty."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """The rest, U+FFFD for a character that never became complete; the stream can be used again."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def open_tokenizer(folder: str | Path) -> K3Tokenizer:
    """The tokenizer of a local folder, which need hold nothing else. Raises: InputError."""
    return load_tokenizer(LocalOpener(Path(folder)), str(folder))


def load_tokenizer(opener: Opener, location: str) -> K3Tokenizer:
    """The tokenizer from ``tiktoken.model`` and ``tokenizer_config.json`` behind ``opener``. Raises: InputError."""
    ranks_at, config_at = f"{location}/{RANKS_FILE}", f"{location}/{CONFIG_FILE}"
    ranks = parse_ranks(read_whole(opener(RANKS_FILE), ranks_at, MAX_RANKS_BYTES), ranks_at)
    names = parse_names(read_whole(opener(CONFIG_FILE), config_at, MAX_CONFIG_BYTES), config_at)
    return K3Tokenizer(ranks, names, ranks_at)


def parse_ranks(raw: bytes, where: str) -> dict[bytes, int]:
    """Lines ``base64(token) rank``. Raises: InputError with the line."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        if not line.strip():
            continue
        parts = line.split()
        try:
            token = base64.b64decode(parts[0], validate=True)
            if len(parts) != 2 or not parts[1].isdigit() or len(parts[1]) > 9 or not token or token in ranks:
                raise ValueError
        except (ValueError, binascii.Error):
            raise InputError(
                "is no line of base64 token and rank, or repeats a token",
                where=f"{where}, line {number}",
                fix="download it again",
            ) from None
        ranks[token] = int(parts[1])
        if len(ranks) > MAX_RANKS:
            raise InputError(f"holds more than {MAX_RANKS} ranks", where=where, fix="do not trust this checkpoint")
    return ranks


def parse_names(raw: bytes, where: str) -> dict[int, str]:
    """Id -> spelling of the special tokens that tokenizer_config.json names. Raises: InputError."""
    try:
        document: Any = json.loads(raw.decode("utf-8"))
        entries = document.get("added_tokens_decoder", {})
        names = {int(slot): entry["content"] for slot, entry in entries.items()}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise InputError(
            "is no JSON object with added_tokens_decoder: {id: {content: name}}", where=where, fix="download it again"
        ) from None
    for name in names.values():
        if not isinstance(name, str) or not name.isprintable():
            raise InputError("names a special token by what is no printable text", where=where)
    return names


def _check_ranks(ranks: Mapping[bytes, int], where: str) -> None:
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise InputError("the ranks are not 0 to n-1, each once", where=where, fix="download it again")
    lacking = [b for b in range(256) if bytes([b]) not in ranks]
    if lacking:
        raise InputError(
            f"has no token for byte {lacking[0]}: not every text could be encoded", where=where, fix="download it again"
        )


def _pieces(text: str) -> Iterator[str]:
    """``text`` cut every :data:`CHUNK_CHARS`, and there inside each run every :data:`RUN_CHARS` from its start."""
    for start in range(0, len(text), CHUNK_CHARS):
        chunk = text[start : start + CHUNK_CHARS]
        cuts = [0, *_cuts(chunk), len(chunk)]
        yield from (chunk[a:b] for a, b in itertools.pairwise(cuts))


def _cuts(chunk: str) -> Sequence[int]:
    if len(chunk) <= RUN_CHARS:
        return ()
    return [at for run in _RUN.finditer(chunk) for at in range(run.start() + RUN_CHARS, run.end(), RUN_CHARS)]
