"""Held-out text as a corpus for ``truecast audit``: ``python -m examples.nano_k3.heldout WORK CHECKPOINT OUT``.

Takes the first tokens of each held-out document, so that every document is one independent sample.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from examples.nano_k3.text import read
from truecast.checkpoint.source import open_checkpoint
from truecast.models.kimi_k3.tokenizer import open_tokenizer
from truecast.models.tokenizer_hash import tokenizer_files, tokenizer_sha256

TOKENS = 384
LEAST = 64


def corpus(pieces: Iterable[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Header and documents of the corpus. ``pieces`` are ``{"id": "document#number", "text"}``; the first of each counts."""
    tokenizer = open_tokenizer(folder)
    checkpoint = open_checkpoint(folder)
    files = tokenizer_files(checkpoint)
    header = {
        "schema": "truecast.corpus/1",
        "tokenizer_sha256": tokenizer_sha256(files),
        "tokenizer_files": files,
        "vocab": checkpoint.config["text_config"]["vocab_size"],
        "source": {"made_by": "examples/nano_k3/heldout.py", "texts": "examples/nano_k3/SOURCES.md"},
    }
    documents = []
    for piece in pieces:
        name, _, number = piece["id"].rpartition("#")
        tokens = tokenizer.encode(piece["text"][: 8 * TOKENS])[:TOKENS]
        if number == "0" and len(tokens) >= LEAST:
            documents.append({"id": name, "tokens": tokens})
    return [header, *documents]


def main() -> int:
    """Write the corpus."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.heldout", description=__doc__)
    parser.add_argument("work", type=Path, help="folder that the text program wrote")
    parser.add_argument("checkpoint", type=Path, help="whose tokenizer to use")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    lines = corpus(read(given.work / "heldout.jsonl.xz"), given.checkpoint)
    given.out.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    print(f"{given.out}: {len(lines) - 1} documents, {sum(len(line['tokens']) for line in lines[1:]):,} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
