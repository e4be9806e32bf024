"""Do reference, candidate and corpus belong together? Asked before anything large is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from truecast.audit.corpus import Corpus
from truecast.errors import InputError
from truecast.models.base import Decoder
from truecast.models.tokenizer_hash import tokenizer_files, tokenizer_sha256

_SHAPES = ("_size", "_dim", "_rank", "_layers", "_heads", "_experts", "_per_token", "_width")
_NOT_SHAPES = ("quantization_config", "vision_config")


def check_models(ref: Decoder, cand: Decoder) -> None:
    """Raises: InputError where the two sides are different architectures, of different shapes or vocabularies."""
    for name in ("family", "layers", "hidden", "vocab"):
        a, b = getattr(ref, name), getattr(cand, name)
        if a != b:
            raise InputError(f"{name} is {b}, the reference's is {a}: not two forms of one model", where=_where(cand))
    theirs = dict(_numbers(cand.checkpoint.config))
    for key, value in _numbers(ref.checkpoint.config):
        if theirs.get(key, value) != value:
            raise InputError(
                f"{key} is {theirs[key]}, the reference's is {value}: not two forms of one model",
                where=f"{_where(cand)}/config.json",
            )


def check_tokenizers(ref: Decoder, cand: Decoder, corpus: Corpus) -> None:
    """Raises: InputError where one side has another tokenizer, or the corpus was made with another."""
    ours, theirs = tokenizer_files(ref.checkpoint), tokenizer_files(cand.checkpoint)
    if ours != theirs:
        raise InputError(
            f"its tokenizer is not the reference's: {_differing(ours, theirs)}",
            where=_where(cand),
            fix="copy the reference's tokenizer files, if they are one model",
        )
    check_corpus(ref, corpus)


def check_corpus(model: Decoder, corpus: Corpus) -> None:
    """Raises: InputError where the corpus was made with another tokenizer than the model's."""
    ours = tokenizer_files(model.checkpoint)
    if corpus.tokenizer_sha256 != tokenizer_sha256(ours):
        which = f": {_differing(corpus.tokenizer_files, ours)}" if corpus.tokenizer_files else ""
        raise InputError(
            f"was made with another tokenizer than {_where(model)} has{which}",
            where=corpus.location,
            fix="make the corpus from this checkpoint with `truecast corpus`",
        )


def _numbers(config: dict[str, Any], inside: str = "") -> Iterator[tuple[str, int]]:
    """The integers of a config that say a shape, by dotted key."""
    for key, value in config.items():
        if isinstance(value, dict) and key not in _NOT_SHAPES and not inside:
            yield from _numbers(value, f"{key}.")
        elif type(value) is int and (key.startswith("num_") or key.endswith(_SHAPES)):
            yield inside + key, value


def _differing(ours: dict[str, str], theirs: dict[str, str]) -> str:
    names = sorted(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n))
    return f"{', '.join(names)} differ{'s' if len(names) == 1 else ''}" if names else "the same files, another hash"


def _where(model: Decoder) -> str:
    return model.checkpoint.location
