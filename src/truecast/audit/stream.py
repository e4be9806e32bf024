"""The pass through the layers: each is loaded once, of both sides, and all rows go through it.

The reference, the candidate and the noisy references move together, so that no weight is read twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from truecast.audit import tracks as track
from truecast.audit.corpus import Corpus
from truecast.audit.errors import StateError
from truecast.audit.floor import add_noise
from truecast.audit.memory import trim
from truecast.audit.prefetch import prefetched
from truecast.audit.resume import Folder
from truecast.audit.same import same_weights
from truecast.audit.spill import Store
from truecast.audit.stored import CountedOpener, Stamps, check_unchanged
from truecast.audit.tiles import Tile
from truecast.audit.tracks import CANDIDATE, REFERENCE, Track, Tracks, noisy
from truecast.errors import InputError
from truecast.models.base import Decoder, Layer
from truecast.models.hidden import Hidden
from truecast.models.rows import Rows
from truecast.models.taps import PLAIN, Taps

Progress = Callable[[str, int, int], None]
"""Told ``(stage, bytes done since the last call, bytes of the whole stage)``."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass works on. ``counters`` count what is read of the two checkpoints.

    Where ``cand`` is ``ref`` itself the pass is of one model: each layer is loaded once, and there is one counter.
    """

    ref: Decoder
    cand: Decoder
    corpus: Corpus
    tiles: Sequence[Tile]
    store: Store
    device: torch.device
    taps: Taps
    seeds: Sequence[int]
    apart: bool
    """Compute the candidate by itself even where it equals the reference."""
    counters: tuple[CountedOpener, ...]
    stamps: tuple[Stamps, Stamps]
    """Of the shards of both sides when the run began."""
    compared: int
    """Bytes read before, to compare weights."""

    def tokens(self, tile: Tile) -> torch.Tensor:
        """Token ids of a tile, ``[N]`` int64."""
        return torch.cat([torch.from_numpy(self.corpus.documents[d].tokens).long() for d in tile.documents]).to(
            self.device
        )

    def check_unchanged(self) -> None:
        """Raises: RefusedError where a shard of either side was changed since the run began."""
        for model, stamps in zip((self.ref, self.cand), self.stamps, strict=True):
            check_unchanged(model.checkpoint, stamps)

    @property
    def read_bytes(self) -> int:
        """Bytes read so far, of both sides."""
        return sum(c.bytes for c in self.counters)


@dataclass(slots=True)
class _Errors:
    """What one layer's states are compared to."""

    candidate: StateError = field(default_factory=StateError)
    noisy: dict[int, StateError] = field(default_factory=dict)


@torch.no_grad()
def run_layers(
    work: Pass, folder: Folder, ahead: bool, progress: Progress | None
) -> tuple[Tracks, list[dict[str, Any]]]:
    """Push all rows through all layers, going on where ``folder`` says. Returns the last states and a list by layer.

    Raises: InputError where a layer gives what is no finite number; RefusedError where a side changes meanwhile,
    or states are not as they were left.
    """
    records = folder.records()
    if records:
        work.store.check(records[-1].get("files", {}))
    else:
        records = [{**_embed(work), "compared": work.compared}]
        work.check_unchanged()
        folder.note(0, records[0])
    states = track.from_json(records[-1]["tracks"])
    work.store.keep_only(track.all_names(states))
    total = sum(_layer_bytes(work, i) for i in range(work.ref.layers))
    if progress:
        progress("layers", sum(_layer_bytes(work, i) for i in range(len(records) - 1)), total)
    for pair in prefetched(lambda i: _load(work, i), len(records) - 1, work.ref.layers, ahead):
        began = time.monotonic()
        states, errors, same = _push(work, states, pair)
        if work.device.type == "cuda":
            torch.cuda.synchronize(work.device)  # before its memory is used again by the thread that loads
        index, read = pair.index, pair.read
        del pair
        trim()
        work.check_unchanged()
        work.store.sync()
        records.append(_record(work, states, errors, index, same, read, time.monotonic() - began))
        folder.note(len(records) - 1, records[-1])
        work.store.keep_only(track.all_names(states))
        if progress:
            progress("layers", _layer_bytes(work, index), total)
    return states, records


@dataclass(slots=True)
class _Pair:
    """Layer ``index`` of both sides, and the bytes that loading them read."""

    index: int
    ref: Layer
    cand: Layer
    read: int


def _load(work: Pass, index: int) -> _Pair:
    before = work.read_bytes
    with own_stream(work.device):
        ref = work.ref.load_layer(index)
        cand = ref if work.cand is work.ref else work.cand.load_layer(index)
    return _Pair(index, ref, cand, work.read_bytes - before)


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU, copies of what is loaded do not queue up behind the kernels of the layer that computes."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


def _layer_bytes(work: Pass, index: int) -> int:
    models = (work.ref,) if work.cand is work.ref else (work.ref, work.cand)
    return sum(t.nbytes for model in models for t in model.layer_tensors(index))


@torch.no_grad()
def _embed(work: Pass) -> dict[str, Any]:
    """Embeddings of all rows as step 0; the runs share them as far as they are equal."""
    began, before = time.monotonic(), work.read_bytes
    used, places = torch.unique(torch.cat([work.tokens(tile) for tile in work.tiles]), return_inverse=True)
    vectors = {REFERENCE: work.ref.embed(used).stream}
    vectors[CANDIDATE] = vectors[REFERENCE] if work.cand is work.ref else work.cand.embed(used).stream
    states: Tracks = {}
    for run, table in vectors.items():
        for number, some in enumerate(places.split([tile.tokens for tile in work.tiles])):
            states[run] = track.write(work.store, run, 0, Track(""), number, Hidden(table.index_select(0, some)))
    if not work.apart and torch.equal(vectors[REFERENCE], vectors[CANDIDATE]):
        states[CANDIDATE] = states[REFERENCE]
    states.update({noisy(seed): states[REFERENCE] for seed in work.seeds})
    work.store.sync()
    return {
        "tracks": track.to_json(states),
        "files": work.store.stamps(track.all_names(states)),
        "read": work.read_bytes - before,
        "seconds": time.monotonic() - began,
    }


def _push(work: Pass, states: Tracks, pair: _Pair) -> tuple[Tracks, _Errors, bool]:
    """All rows through one layer. Returns the new states, their errors, and whether the candidate still shares."""
    plain = work.taps is PLAIN
    together = (
        not work.apart
        and plain
        and states[CANDIDATE] == states[REFERENCE]
        and (pair.cand is pair.ref or same_weights(pair.ref, pair.cand))
    )
    if together:
        pair.cand = pair.ref  # the copy is let go of
    errors = _Errors(noisy={seed: StateError() for seed in work.seeds})
    after: Tracks = {}
    step = pair.index + 1
    for number, tile in enumerate(work.tiles):
        rows = Rows(tile.lengths)
        before = track.read(work.store, states[REFERENCE], number, work.device)
        ref = pair.ref(before, rows)
        check_finite(ref.stream, work.ref, pair.index)
        after[REFERENCE] = track.write(work.store, REFERENCE, step, states[REFERENCE], number, ref)
        if together:
            after[CANDIDATE] = after[REFERENCE]
            errors.candidate.add(ref.stream, ref.stream)
        else:
            cand = pair.cand(track.read(work.store, states[CANDIDATE], number, work.device), rows, work.taps)
            check_finite(cand.stream, work.cand, pair.index)
            after[CANDIDATE] = track.write(work.store, CANDIDATE, step, states[CANDIDATE], number, cand)
            errors.candidate.add(cand.stream, ref.stream)
            del cand
        del before
        for seed in work.seeds:
            run = noisy(seed)
            out = (
                ref
                if states[run] == states[REFERENCE]
                else pair.ref(track.read(work.store, states[run], number, work.device), rows)
            )
            out = type(out)(add_noise(out.stream, tile.documents, tile.lengths, seed, pair.index), out.snapshots)
            after[run] = track.write(work.store, run, step, states[run], number, out)
            errors.noisy[seed].add(out.stream, ref.stream)
            del out
        del ref
        for stream in {state.stream for state in states.values()}:
            work.store.let_go(stream, number)
    return after, errors, together


def check_finite(stream: torch.Tensor, model: Decoder, layer: int) -> None:
    """Raises: InputError where what a layer gave is not finite."""
    if not bool(torch.isfinite(stream).all()):
        raise InputError(
            f"layer {layer} gives what is no finite number",
            where=model.checkpoint.location,
            fix="`truecast check` finds scales that are NaN or infinite",
        )


def _record(
    work: Pass, states: Tracks, errors: _Errors, index: int, same: bool, read: int, seconds: float
) -> dict[str, Any]:
    noise = [e.relative for e in errors.noisy.values()]
    return {
        "tracks": track.to_json(states),
        "files": work.store.stamps(track.all_names(states)),
        "read": read,
        "seconds": seconds,
        "layer": {
            "layer": index,
            "relative_error": errors.candidate.relative,
            "max_error": errors.candidate.worst,
            "floor_error": sum(noise) / len(noise) if noise else None,
            "equal": same,
        },
    }


def layers_of(records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The entries of ``layers`` in the audit's document."""
    return (record["layer"] for record in records if "layer" in record)
