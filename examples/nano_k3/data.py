"""What a training step reads: text pieces as ids, and dialogues made as they are needed.

``python -m examples.nano_k3.data WORK OUT`` packs the training and held-out text as ids into ``text.xz`` and
``heldout.xz`` beside the vocabulary, a few megabytes that travel to where training runs.
"""

from __future__ import annotations

import argparse
import lzma
import multiprocessing
import queue
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.nano_k3 import dialogue
from examples.nano_k3.text import read
from truecast.models.kimi_k3.tokenizer import K3Tokenizer, open_tokenizer

U16 = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the shapes a step is made of: rows, tokens of a row, share of the loss."""

    name: str
    rows: int
    length: int
    share: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one kind, padded on the right. All arrays are ``[rows, length]``."""

    tokens: U16
    targets: U16
    counts: NDArray[np.bool_]
    """Does the prediction of this target count?"""
    live: NDArray[np.bool_]
    """Is this token no padding?"""


def assemble(kind: Kind, rows: list[tuple[list[int] | U16, list[bool] | None]], pad: int) -> Batch:
    """Rows of ids, and which of them were written by the assistant (None: all count)."""
    tokens = np.full((kind.rows, kind.length), pad, np.uint16)
    targets, counts = tokens.copy(), np.zeros(tokens.shape, np.bool_)
    live = counts.copy()
    for row, (ids, written) in enumerate(rows):
        n = min(len(ids) - 1, kind.length)
        tokens[row, :n], targets[row, :n] = ids[:n], ids[1 : n + 1]
        counts[row, :n] = True if written is None else written[1 : n + 1]
        live[row, :n] = True
    return Batch(tokens, targets, counts, live)


class Text:
    """Pieces of documents in a random order, each cut to rows; the last row of a piece reaches back to be full."""

    def __init__(self, flat: U16, lengths: NDArray[np.uint32], seed: int) -> None:
        self.pieces = np.split(flat, np.cumsum(lengths)[:-1])
        self.rng = np.random.default_rng(seed)
        self.epoch = 0

    def batches(self, kind: Kind, pad: int) -> Iterator[Batch]:
        """Without end. No row holds tokens of two documents."""
        held: list[tuple[U16, None]] = []
        while True:
            rows = [(p, at) for p in range(len(self.pieces)) for at in _starts(len(self.pieces[p]), kind.length)]
            for number in self.rng.permutation(len(rows)):
                piece, at = rows[number]
                held.append((self.pieces[piece][at : at + kind.length + 1], None))
                if len(held) == kind.rows:
                    yield assemble(kind, list(held), pad)
                    held = []
            self.epoch += 1


def _starts(size: int, length: int) -> list[int]:
    """Where the rows of a piece begin: a row has ``length`` tokens and sees one more as its last target."""
    if size <= length + 1:
        return [0]
    return [*range(0, size - length - 1, length), size - length - 1]


def dialogues(tokenizer: K3Tokenizer, kinds: list[Kind], seed: int) -> Iterator[tuple[str, Batch]]:
    """Batches of dialogues without end; a dialogue goes to the shortest kind that it fits in, or nowhere."""
    rng, pad = random.Random(seed), tokenizer.special("[PAD]")
    held: dict[str, list[Any]] = {kind.name: [] for kind in kinds}
    while True:
        ids, written = dialogue.encode(tokenizer, dialogue.draw(rng))
        for kind in kinds:
            if len(ids) <= kind.length + 1:
                held[kind.name].append((ids, written))
                if len(held[kind.name]) == kind.rows:
                    yield kind.name, assemble(kind, held[kind.name], pad)
                    held[kind.name] = []
                break


class Makers:
    """Processes that make dialogues; ``next(kind)`` gives a batch of that kind."""

    def __init__(self, vocabulary: Path, kinds: list[Kind], seed: int, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.queues = {kind.name: context.Queue(maxsize=64) for kind in kinds}
        self.processes = [
            context.Process(target=_make, args=(vocabulary, kinds, seed + n, self.queues), daemon=True)
            for n in range(processes)
        ]
        for process in self.processes:
            process.start()

    def next(self, kind: str) -> Batch:
        """Wait for a batch."""
        return self.queues[kind].get(timeout=120)  # type: ignore[no-any-return]

    def stop(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(5)
        for waiting in self.queues.values():
            waiting.cancel_join_thread()


def _make(vocabulary: Path, kinds: list[Kind], seed: int, queues: dict[str, Any]) -> None:
    for name, batch in dialogues(open_tokenizer(vocabulary), kinds, seed):
        try:
            queues[name].put(batch, timeout=0.05)
        except queue.Full:
            continue  # the other kind is the one that is waited for


def save(path: Path, documents: list[list[int]]) -> None:
    """Ids of documents, xz-compressed: the lengths, then the ids, as two arrays."""
    with lzma.open(path, "wb", preset=6) as file:
        np.save(file, np.array([len(d) for d in documents], np.uint32), allow_pickle=False)
        np.save(file, np.concatenate([np.array(d, np.uint16) for d in documents]), allow_pickle=False)


def load(path: Path) -> tuple[U16, NDArray[np.uint32]]:
    """Flat ids and the documents' lengths."""
    with lzma.open(path, "rb") as file:
        lengths = np.load(file, allow_pickle=False)
        return np.load(file, allow_pickle=False), lengths


def main() -> int:
    """Turn the text into ids."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.data", description=__doc__)
    parser.add_argument("work", type=Path, help="folder with the text and, in vocab, the vocabulary")
    parser.add_argument("out", type=Path, help="folder for what travels")
    given = parser.parse_args()
    vocabulary = given.work / "vocab"
    tokenizer = open_tokenizer(vocabulary)
    given.out.mkdir(parents=True, exist_ok=True)
    for name in ("tiktoken.model", "tokenizer_config.json"):
        (given.out / name).write_bytes((vocabulary / name).read_bytes())
    for source, target in (("train", "text"), ("heldout", "heldout")):
        documents = read(given.work / f"{source}.jsonl.xz")
        ids = [tokenizer.encode(document["text"]) for document in documents]
        save(given.out / f"{target}.xz", ids)
        tokens, characters = sum(map(len, ids)), sum(len(d["text"]) for d in documents)
        size = (given.out / f"{target}.xz").stat().st_size
        print(
            f"{target}: {len(ids):,} pieces, {tokens:,} tokens, {characters / tokens:.2f} characters each, {size:,} bytes"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
