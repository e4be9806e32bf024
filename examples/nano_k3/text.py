"""The training text: ``python -m examples.nano_k3.text WORK``.

Reads every source, cleans it, cuts it into documents, drops repeats, and holds out one document in 60 by the hash of
its name. Writes ``train.jsonl.xz``, ``heldout.jsonl.xz`` (one ``{"id", "source", "text"}`` a line) and
``sources.json``. The text itself is not part of the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from examples.nano_k3.sources import SOURCES, fetch, versions

LONGEST = 12_000
"""Characters of a document at most; longer ones are cut at a blank line and held out as a whole."""

SHORTEST = 300
HELD_OUT_IN = 60

_PLAIN = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "“": '"', "”": '"', "\u2013": "-", "—": "--", "…": "...", "\u00a0": " ", "¶": "", "•": "*",
     "\u200b": "", "→": "->", "\t": "    ", "\r": "", "\x0c": "\n"}
)  # fmt: skip


def clean(text: str) -> str:
    """Plain punctuation, no trailing blanks, no runs of blank lines or of drawing characters."""
    text = text.translate(_PLAIN)
    text = re.sub(r"[ ]+$", "", text, flags=re.M)
    text = re.sub(r"([-=~^*+_.#]){5,}", r"\1\1\1\1", text)
    text = re.sub(r"(?<=\S) {3,}", "  ", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def wanted(text: str) -> bool:
    """Is this long enough, and English rather than tables of numbers or another script?"""
    letters = sum(c.isascii() and c.isalpha() for c in text)
    spaces = text.count(" ")
    return len(text) >= SHORTEST and letters > 0.6 * len(text) and spaces > 0.08 * len(text)


def pieces(text: str) -> Iterator[str]:
    """Cut at blank lines into pieces of at most ``LONGEST`` characters (a longer paragraph stays whole)."""
    held, size = [], 0
    for paragraph in text.split("\n\n"):
        if held and size + len(paragraph) > LONGEST:
            yield "\n\n".join(held)
            held, size = [], 0
        held.append(paragraph)
        size += len(paragraph) + 2
    if held:
        yield "\n\n".join(held)


class Seen:
    """Remembers long lines; a document that is mostly made of remembered lines is a repeat."""

    def __init__(self) -> None:
        self.lines: set[int] = set()

    def repeats(self, text: str) -> bool:
        """Was more than a third of its long lines seen before? Remembers them."""
        marks = [hash(line.strip()) for line in text.splitlines() if len(line) > 40]
        known = sum(mark in self.lines for mark in marks)
        self.lines.update(marks)
        return known * 3 > max(len(marks), 1)


def documents(work: Path, seen: Seen, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All documents of all sources; ``record`` gets a line for each source."""
    for source in SOURCES:
        root = fetch(source, work / "packages")
        kept = characters = 0
        for name, raw in source.read(root):
            text = clean(raw)
            if not wanted(text) or seen.repeats(text):
                continue
            kept, characters = kept + 1, characters + len(text)
            yield {"id": f"{source.name}:{name}", "source": source.name, "text": text}
        packages = versions(source, work / "packages")
        record[source.name] = {
            "packages": packages, "licence": source.licence, "documents": kept, "characters": characters,
        }  # fmt: skip
        print(f"{source.name}: {kept:,} documents, {characters / 1e6:.2f} million characters", flush=True)


def held_out(identifier: str) -> bool:
    """Does this document stay out of training? Decided by its name alone."""
    return int.from_bytes(hashlib.sha256(identifier.encode()).digest()[:4], "big") % HELD_OUT_IN == 0


def write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line, xz-compressed."""
    with lzma.open(path, "wt", preset=4, encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """What :func:`write` wrote."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main() -> int:
    """Fetch, clean, split and write."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.text", description=__doc__)
    parser.add_argument("work", type=Path, help="folder for packages and text")
    work: Path = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {}
    kept = list(documents(work, Seen(), record))
    parts = {"train": [d for d in kept if not held_out(d["id"])], "heldout": [d for d in kept if held_out(d["id"])]}
    for name, chosen in parts.items():
        cut = [
            {**document, "id": f"{document['id']}#{n}", "text": piece}
            for document in chosen
            for n, piece in enumerate(pieces(document["text"]))
            if len(piece) >= SHORTEST
        ]
        write(work / f"{name}.jsonl.xz", cut)
        print(
            f"{name}: {len(chosen):,} documents in {len(cut):,} pieces, {sum(len(d['text']) for d in cut):,} characters"
        )
    (work / "sources.json").write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
