"""The reference's side from its checkpoint: log-probabilities of given tokens, from one pass through the layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from truecast.audit import tracks as track
from truecast.audit.corpus import Corpus
from truecast.audit.memory import Fit
from truecast.audit.needs import snapshots
from truecast.audit.place import check_disk
from truecast.audit.resume import Folder
from truecast.audit.scoring import scored_rows
from truecast.audit.spill import Store
from truecast.audit.stored import Stamps, count_reads
from truecast.audit.stream import Pass, Progress, run_layers
from truecast.audit.tiles import make_tiles
from truecast.audit.tracks import REFERENCE
from truecast.errors import InputError
from truecast.models.base import Decoder
from truecast.models.taps import PLAIN


@dataclass(slots=True)
class Looked:
    """Of ``n`` positions: ``follows`` ``[n]`` of the token that follows, ``at`` ``[n, m]`` of the tokens asked for, both
    natural logarithms; ``best`` ``[n]``, the most probable token. ``read``: bytes read."""

    follows: NDArray[np.float64]
    at: NDArray[np.float64]
    best: NDArray[np.int64]
    read: int


@torch.no_grad()
def look_up(
    model: Decoder,
    stamps: Stamps,
    corpus: Corpus,
    ids: NDArray[np.int32],
    folder: Folder,
    sizes: Fit,
    place: tuple[torch.device, torch.dtype],
    progress: Progress | None,
) -> Looked:
    """Log-probabilities of tokens ``ids`` ``[n, m]``, a row for each scored position of the corpus, in its order.

    Goes on from the last finished layer that ``folder`` holds. Raises: InputError where a logit is not finite;
    RefusedError where the disk is too small or the checkpoint has changed.
    """
    device, dtype = place
    tiles = make_tiles([len(d.tokens) for d in corpus.documents], folder.chosen["tile_tokens"])
    store = Store(folder.states, [t.tokens for t in tiles], model.hidden, dtype, sizes.kept_bytes)
    try:
        check_disk(folder.states, (2 + snapshots(model.checkpoint)) * store.bytes_each, "a smaller corpus")
        counter = count_reads(model.checkpoint)
        work = Pass(
            model, model, corpus, tiles, store, device, PLAIN, (), False, (counter,), (stamps, stamps), 0
        )  # fmt: skip
        states, _ = run_layers(work, folder, sizes.ahead, progress)
        head = model.load_head()
        starts = np.concatenate([[0], np.cumsum([d.scored for d in corpus.documents])])
        found = Looked(np.zeros(len(ids)), np.zeros(ids.shape), np.zeros(len(ids), np.int64), 0)
        for number, tile in enumerate(tiles):
            rows, places, labels = scored_rows(work, tile, starts)
            at = torch.from_numpy(rows).to(device)
            state = head.final(track.read(store, states[REFERENCE], number, device)).index_select(0, at)
            wanted = torch.from_numpy(ids[places].astype(np.int64)).to(device)
            for some in torch.split(torch.arange(len(rows), device=device), sizes.scored_rows):
                asked = torch.cat([labels[some][:, None], wanted[some]], 1)
                values, best = log_probabilities(state[some], head.weight, asked, sizes.vocabulary_tile)
                where = places[some.cpu().numpy()]
                found.follows[where], found.at[where] = values[:, 0].cpu().numpy(), values[:, 1:].cpu().numpy()
                found.best[where] = best.cpu().numpy()
        work.check_unchanged()
    finally:
        store.close()
    if not (np.isfinite(found.follows).all() and np.isfinite(found.at).all()):
        raise InputError(
            "logits are not finite",
            where=model.checkpoint.location,
            fix="`truecast check` finds scales that are NaN or infinite",
        )
    found.read = counter.bytes
    return found


def log_probabilities(
    state: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor, vocabulary_tile: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of ``tokens`` ``[n, m]`` under the softmax of ``state @ weight.T``, ``[n, m]`` float64; and the first choices ``[n]``.

    Logits are float32 (float64 for float64 states) and never exist for more than a tile of the vocabulary.
    """
    work = torch.float64 if state.dtype == torch.float64 else torch.float32
    n, vocabulary = len(state), weight.shape[0]
    top = torch.full((n,), -torch.inf, dtype=torch.float64, device=state.device)
    total, best = torch.zeros_like(top), torch.zeros(n, dtype=torch.int64, device=state.device)
    found = torch.zeros(tokens.shape, dtype=torch.float64, device=state.device)
    for start in range(0, vocabulary, vocabulary_tile):
        logits = (state.to(work) @ weight[start : start + vocabulary_tile].to(work).T).double()
        highest, where = logits.max(1)
        best = torch.where(highest > top, where + start, best)
        before, top = top, torch.maximum(top, highest)
        total = total * torch.exp(before - top) + torch.exp(logits - top[:, None]).sum(1)
        inside = (tokens >= start) & (tokens < start + logits.shape[1])
        picked = logits.gather(1, (tokens - start).clamp(0, logits.shape[1] - 1))
        found = torch.where(inside, picked, found)
    return found - (top + torch.log(total))[:, None], best
