"""Where the states of each run through the model lie: the reference, the candidate, and the noisy references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from truecast.audit.spill import Store
from truecast.models.hidden import Hidden

REFERENCE, CANDIDATE = "reference", "candidate"


@dataclass(frozen=True, slots=True)
class Track:
    """Names of the stored arrays that are one run's state between two layers.

    Two runs with equal states have equal tracks: what they share is stored, and computed, once.
    """

    stream: str
    blocks: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (self.stream, *self.blocks)


Tracks = dict[str, Track]
"""By run: ``reference``, ``candidate``, ``noise-SEED``."""


def noisy(seed: int) -> str:
    """Name of a noisy reference's run."""
    return f"noise-{seed}"


def read(store: Store, track: Track, tile: int, device: torch.device) -> Hidden:
    """A tile of a run's state, on ``device``."""
    return Hidden(
        store.read(track.stream, tile).to(device), tuple(store.read(name, tile).to(device) for name in track.blocks)
    )


def write(store: Store, run: str, layer: int, before: Track, tile: int, hidden: Hidden) -> Track:
    """Store a tile of what layer ``layer`` made of ``before``. Blocks that were there are not written again."""
    stream = f"{run}.layer{layer}"
    store.write(stream, tile, hidden.stream)
    blocks = list(before.blocks)
    for number in range(len(blocks), len(hidden.snapshots)):
        blocks.append(f"{run}.block{number}")
        store.write(blocks[-1], tile, hidden.snapshots[number])
    return Track(stream, tuple(blocks))


def to_json(tracks: Tracks) -> dict[str, list[str]]:
    """As a record holds them."""
    return {run: list(track.names) for run, track in tracks.items()}


def from_json(value: Mapping[str, Any]) -> Tracks:
    """The inverse of :func:`to_json`."""
    return {run: Track(names[0], tuple(names[1:])) for run, names in value.items()}


def all_names(tracks: Tracks) -> set[str]:
    """Every array that some run still needs."""
    return {name for track in tracks.values() for name in track.names}
