"""A calibration: one model, pushed through layer by layer, and what enters its quantized matrices written down."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from truecast.audit import tracks as track
from truecast.audit.corpus import Corpus, read_corpus
from truecast.audit.memory import Fit, fit, return_freed_memory, trim
from truecast.audit.needs import needs_of, snapshots, text_bytes
from truecast.audit.pairing import check_corpus
from truecast.audit.place import SPARE_DISK_BYTES, check_disk, device_of, dtype_of
from truecast.audit.prefetch import prefetched
from truecast.audit.recorder import Recorder, with_never_routed
from truecast.audit.spill import Store
from truecast.audit.stored import check_unchanged, count_reads
from truecast.audit.stream import Progress, check_finite, own_stream
from truecast.audit.tiles import Tile, make_tiles
from truecast.audit.tracks import Track
from truecast.errors import InputError, RefusedError
from truecast.layouts.base import Matrix
from truecast.layouts.calibration import InputStatistics, document_sha256, write_calibration
from truecast.layouts.recognise import recognise
from truecast.models import open_model
from truecast.models.base import Decoder, Layer
from truecast.models.hidden import Hidden
from truecast.models.rows import Rows

MAX_HESSIAN_BYTES = 4 << 30
"""All Hessians of a file together: they are held in memory until it is written."""

_RUN = "calibration"


@dataclass(frozen=True, slots=True)
class _Pass:
    model: Decoder
    corpus: Corpus
    tiles: Sequence[Tile]
    store: Store
    device: torch.device
    matrices: Sequence[Sequence[Matrix]]
    """Quantized matrices of each layer."""


def calibrate(
    location: str,
    corpus: Path,
    out: Path,
    *,
    device: str = "auto",
    memory: int | None = None,
    hessian: bool = False,
    limit: int | None = None,
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run the documents of ``corpus`` through a checkpoint and write its calibration to ``out``. Returns what it holds.

    ``memory``: bytes of resident memory, None as it comes. ``hessian``: second moments of channels with each other too.
    ``limit``: only the first documents. Raises: InputError for what does not belong together, or a model without
    quantized matrices; RefusedError where ``out`` exists, or memory, disk or the bound on Hessians is too small.
    """
    began = time.monotonic()
    _check_out(out)
    place = device_of(device)
    model = open_model(location, device=str(place), dtype=dtype)
    stamps = model.checkpoint.stamps()
    documents = read_corpus(corpus, model.vocab, limit)
    check_corpus(model, documents)
    matrices = _matrices(model)
    each = [m for layer in matrices for m in layer]
    size = sum(_statistics_bytes(m, hessian) for m in each)
    if hessian:
        _check_hessians(each)
    return_freed_memory()
    chosen = dtype or dtype_of(place)
    sizes = _fit(memory, model, documents, chosen, place, matrices, hessian)
    _check_free(out, size)
    weights = model.checkpoint.weights_sha256()
    counter = count_reads(model.checkpoint)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="truecast-")))
        tiles = make_tiles([len(d.tokens) for d in documents.documents], sizes.tile_tokens)
        store = Store(folder, [t.tokens for t in tiles], model.hidden, chosen, sizes.kept_bytes)
        stack.callback(store.close)
        check_disk(folder, (2 + snapshots(model.checkpoint)) * store.bytes_each, "a smaller corpus")
        found = _run(_Pass(model, documents, tiles, store, place, matrices), hessian, sizes.ahead, progress)
    check_unchanged(model.checkpoint, stamps)
    digest = write_calibration(
        out,
        found,
        source=model.checkpoint.fingerprint(),
        weights=weights,
        documents={d.id: document_sha256(d.tokens.tolist()) for d in documents.documents},
        tokens=documents.tokens,
    )
    return {
        "out": str(out),
        "sha256": digest,
        "bytes": out.stat().st_size,
        "source": {"location": model.checkpoint.location, "fingerprint": model.checkpoint.fingerprint()},
        "documents": len(documents.documents),
        "tokens": documents.tokens,
        "modules": len(found),
        "never_routed": [module for module, one in found.items() if one.tokens == 0],
        "hessians": sum(one.hessian is not None for one in found.values()),
        "device": place.type,
        "dtype": str(chosen).removeprefix("torch."),
        "read": {"bytes": counter.bytes, "checkpoint_bytes": text_bytes([model])},
        "seconds": time.monotonic() - began,
    }


@torch.no_grad()
def _run(work: _Pass, hessian: bool, ahead: bool, progress: Progress | None) -> dict[str, InputStatistics]:
    """All rows through all layers. Returns statistics of all modules, layer by layer."""
    state = _embed(work)
    recorder = Recorder(hessian)
    found: dict[str, InputStatistics] = {}
    total = sum(t.nbytes for i in range(work.model.layers) for t in work.model.layer_tensors(i))
    if progress:
        progress("layers", 0, total)
    for index, layer in prefetched(lambda i: _load(work, i), 0, work.model.layers, ahead):
        state = _push(work, state, layer, index, recorder)
        if work.device.type == "cuda":
            torch.cuda.synchronize(work.device)  # before its memory is used again by the thread that loads
        found |= with_never_routed(recorder.take(), [m.name for m in work.matrices[index]])
        del layer
        trim()
        work.store.keep_only(set(state.names))
        if progress:
            progress("layers", sum(t.nbytes for t in work.model.layer_tensors(index)), total)
    return found


def _load(work: _Pass, index: int) -> tuple[int, Layer]:
    with own_stream(work.device):
        return index, work.model.load_layer(index)


def _embed(work: _Pass) -> Track:
    """Embeddings of all rows; each token's is read once."""
    tokens = [
        torch.cat([torch.from_numpy(work.corpus.documents[d].tokens).long() for d in tile.documents])
        for tile in work.tiles
    ]
    used, places = torch.unique(torch.cat(tokens).to(work.device), return_inverse=True)
    table = work.model.embed(used).stream
    state = Track("")
    for number, some in enumerate(places.split([tile.tokens for tile in work.tiles])):
        state = track.write(work.store, _RUN, 0, Track(""), number, Hidden(table.index_select(0, some)))
    return state


def _push(work: _Pass, state: Track, layer: Layer, index: int, recorder: Recorder) -> Track:
    after = state
    for number, tile in enumerate(work.tiles):
        hidden = layer(track.read(work.store, state, number, work.device), Rows(tile.lengths), recorder)
        check_finite(hidden.stream, work.model, index)
        after = track.write(work.store, _RUN, index + 1, state, number, hidden)
        work.store.let_go(state.stream, number)
    return after


def _matrices(model: Decoder) -> list[list[Matrix]]:
    """Quantized matrices of each layer, in the order in which they are stored."""
    by_tensor: dict[str, list[Matrix]] = defaultdict(list)  # a stacked tensor holds many
    for matrix in recognise(model.checkpoint.tensors).matrices.values():
        by_tensor[matrix.codes.tensor.name].append(matrix)
    layers = []
    for i in range(model.layers):
        names = dict.fromkeys(t.name for t in model.layer_tensors(i))
        layers.append([matrix for name in names for matrix in by_tensor.get(name, ())])
    if not any(layers):
        raise InputError(
            "has no quantized matrix, so there is nothing to calibrate",
            where=model.checkpoint.location,
            fix="calibrate the checkpoint that is to be converted",
        )
    return layers


def _fit(
    memory: int | None,
    model: Decoder,
    corpus: Corpus,
    dtype: torch.dtype,
    device: torch.device,
    matrices: Sequence[Sequence[Matrix]],
    hessian: bool,
) -> Fit:
    """Tiles and kept states beside the sums of a layer (float64) and the statistics of all layers (float32)."""
    needs = needs_of([model], corpus, dtype, device)
    kept = sum(_statistics_bytes(m, hessian) for layer in matrices for m in layer)
    sums = max(sum(2 * _statistics_bytes(m, hessian) for m in layer) for layer in matrices)
    if device.type == "cpu":
        return fit(memory, replace(needs, reading=needs.reading + kept + sums), device)
    return fit(memory, replace(needs, reading=needs.reading + kept, on_device=needs.on_device + sums), device)


def _statistics_bytes(matrix: Matrix, hessian: bool) -> int:
    return 4 * matrix.cols * (1 + (matrix.cols if hessian else 0))


def _check_hessians(matrices: Sequence[Matrix]) -> None:
    size = sum(4 * m.cols**2 for m in matrices)
    if size > MAX_HESSIAN_BYTES:
        raise RefusedError(
            f"the Hessians of {len(matrices):,} matrices would take {size / 1e9:,.1f} GB, and at most"
            f" {MAX_HESSIAN_BYTES / 1e9:,.1f} GB are written",
            where="--hessian",
            fix="leave it out and convert with --rounding diagonal",
        )


def _check_out(out: Path) -> None:
    if out.exists():
        raise RefusedError("exists", where=str(out), fix="remove it, or write elsewhere")
    if not out.parent.is_dir():
        raise InputError("is no folder", where=str(out.parent), fix="make it, or write elsewhere")


def _check_free(out: Path, size: int) -> None:
    free = shutil.disk_usage(out.parent).free
    if free < size + SPARE_DISK_BYTES:
        raise RefusedError(
            f"the calibration takes {size / 1e9:,.2f} GB, {free / 1e9:,.2f} GB are free",
            where=str(out.parent),
            fix="free space, or write elsewhere",
        )
