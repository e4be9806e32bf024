"""From the last states to what is kept of every scored position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from truecast.audit import tracks as track
from truecast.audit.errors import StateError
from truecast.audit.kl import divergence
from truecast.audit.memory import Fit, trim
from truecast.audit.positions import DTYPES, Positions
from truecast.audit.same import same_weights
from truecast.audit.stream import Pass, Progress
from truecast.audit.tiles import Tile
from truecast.audit.tracks import CANDIDATE, REFERENCE, Tracks, noisy
from truecast.errors import InputError
from truecast.models.base import Head


@dataclass(slots=True)
class Scores:
    """``positions`` in the order of the corpus; ``floor``: seed -> KL(reference || noisy reference) ``[n]``.

    ``final_error``: relative error of what the candidate's head consumes. ``read``: bytes of the heads.
    """

    positions: Positions
    floor: dict[int, NDArray[np.float64]]
    final_error: float
    read: int


@torch.no_grad()
def score(work: Pass, states: Tracks, fit: Fit, progress: Progress | None) -> Scores:
    """Compare next-token distributions at every scored position. Raises: InputError where a logit is not finite."""
    before = work.read_bytes
    ref_head, cand_head = _heads(work)
    starts = np.concatenate([[0], np.cumsum([d.scored for d in work.corpus.documents])])
    total = int(starts[-1])
    arrays = {name: np.zeros(total, dtype) for name, dtype in DTYPES.items()}
    floor = {seed: np.zeros(total) for seed in work.seeds}
    error = StateError()
    for number, tile in enumerate(work.tiles):
        rows, places, labels = scored_rows(work, tile, starts)
        at = torch.from_numpy(rows).to(work.device)

        def final(run: str, head: Head, number: int = number, at: torch.Tensor = at) -> torch.Tensor:
            return head.final(track.read(work.store, states[run], number, work.device)).index_select(0, at)

        ref = final(REFERENCE, ref_head)
        cand = ref if states[CANDIDATE] == states[REFERENCE] and cand_head is ref_head else final(CANDIDATE, cand_head)
        noise = [final(noisy(seed), ref_head) for seed in work.seeds]
        error.add(cand, ref)
        _fill_places(arrays, work, tile, places)
        for some in torch.split(torch.arange(len(rows), device=work.device), fit.scored_rows):
            found = divergence(
                (ref[some], ref_head.weight),
                (cand[some], cand_head.weight),
                [state[some] for state in noise],
                labels[some],
                fit.vocabulary_tile,
            )
            where = places[some.cpu().numpy()]
            for name in arrays.keys() - {"doc", "pos"}:
                arrays[name][where] = getattr(found, name).cpu().numpy()
            for i, seed in enumerate(work.seeds):
                floor[seed][where] = found.floor[i].cpu().numpy()
        row_bytes = ref.shape[1] * ref.element_size()
        del ref, cand, noise
        trim()
        if progress:
            progress("logits", len(rows) * row_bytes, total * row_bytes)
    _check(arrays, work)
    return Scores(Positions(**arrays), floor, error.relative, work.read_bytes - before)


def _heads(work: Pass) -> tuple[Head, Head]:
    """Both heads; one, where they are equal and need not be held apart."""
    ref, cand = work.ref.load_head(), work.cand.load_head()
    return (ref, ref) if not work.apart and same_weights(ref, cand) else (ref, cand)


def scored_rows(
    work: Pass, tile: Tile, starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], torch.Tensor]:
    """Of a tile's scored positions: rows in the tile, places in the result, and the tokens that follow."""
    rows, places, labels, offset = [], [], [], 0
    for index in tile.documents:
        document = work.corpus.documents[index]
        rows.append(np.arange(document.scored, dtype=np.int64) + offset + document.scored_from)
        places.append(np.arange(document.scored, dtype=np.int64) + starts[index])
        labels.append(document.tokens[document.scored_from + 1 :].astype(np.int64))
        offset += len(document.tokens)
    following = torch.from_numpy(np.concatenate(labels)).to(work.device)
    return np.concatenate(rows), np.concatenate(places), following


def _fill_places(arrays: dict[str, NDArray[np.generic]], work: Pass, tile: Tile, places: NDArray[np.int64]) -> None:
    documents: Sequence[int] = tile.documents
    scored = [work.corpus.documents[d] for d in documents]
    arrays["doc"][places] = np.repeat(np.array(documents, np.int32), [d.scored for d in scored])
    arrays["pos"][places] = np.concatenate(
        [np.arange(d.scored_from, len(d.tokens) - 1, dtype=np.int32) for d in scored]
    )


def _check(arrays: dict[str, NDArray[np.generic]], work: Pass) -> None:
    for name in ("nll_ref", "nll_cand", "kl"):
        bad = np.flatnonzero(~np.isfinite(arrays[name].astype(np.float64)))
        if bad.size:
            model = work.ref if name == "nll_ref" else work.cand
            document = work.corpus.documents[int(arrays["doc"][bad[0]])]
            raise InputError(
                f"the logits of document {document.id!r} at position {int(arrays['pos'][bad[0]])} are not finite",
                where=model.checkpoint.location,
                fix="`truecast check` finds scales that are NaN or infinite",
            )
