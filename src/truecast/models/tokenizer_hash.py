"""Which tokenizer a checkpoint has, as one hash: two checkpoints, or a corpus and a checkpoint, are held against it."""

from __future__ import annotations

import hashlib

from truecast.checkpoint.files import stream
from truecast.checkpoint.source import Checkpoint

TOKENIZER_FILES = (
    "merges.txt",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""The files that decide how text becomes token ids, in name order; a checkpoint has some of them."""


def tokenizer_files(checkpoint: Checkpoint) -> dict[str, str]:
    """sha256 of each tokenizer file that the checkpoint has, by name. Raises: InputError if one cannot be read."""
    return {name: _sha256(checkpoint, name) for name in TOKENIZER_FILES if name in checkpoint.auxiliary}


def tokenizer_sha256(files: dict[str, str]) -> str:
    """One sha256 over what :func:`tokenizer_files` gives: names and hashes in name order."""
    lines = "".join(f"{name}\0{files[name]}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def _sha256(checkpoint: Checkpoint, name: str) -> str:
    file, digest = checkpoint.opener(name), hashlib.sha256()
    try:
        for piece in stream(file, 0, file.size):
            digest.update(piece)
    finally:
        file.close()
    return digest.hexdigest()
