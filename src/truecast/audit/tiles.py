"""How documents are grouped into tiles: the rows that go through a layer together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """Whole documents packed one after another. ``documents`` are indices in the corpus, ``lengths`` their tokens."""

    documents: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Rows of the tile."""
        return sum(self.lengths)


def make_tiles(lengths: Sequence[int], tokens: int) -> list[Tile]:
    """Documents in tiles of at most ``tokens`` rows, padding counted; a longer document is a tile of its own.

    A model pads a tile's documents to the longest for attention, so documents of like length go together, longest
    first. Which documents share a tile depends on the lengths and ``tokens`` alone: a run that goes on after a kill
    makes the same tiles, and so the same roundings.
    """
    tiles: list[Tile] = []
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and (len(group) + 1) * lengths[group[0]] > tokens:
            tiles.append(_tile(group, lengths))
            group = []
        group.append(index)
    return [*tiles, _tile(group, lengths)]


def _tile(group: list[int], lengths: Sequence[int]) -> Tile:
    return Tile(tuple(group), tuple(lengths[i] for i in group))
