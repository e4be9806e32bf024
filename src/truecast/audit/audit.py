"""The audit: what a cast costs in nats per token, with each weight read once."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from truecast.audit.activations import Emulation, emulation
from truecast.audit.corpus import check_counted_once, read_corpus
from truecast.audit.disjoint import check_disjoint
from truecast.audit.document import head, identity, nothing_lost
from truecast.audit.identical import identical
from truecast.audit.memory import Fit, fit, return_freed_memory
from truecast.audit.needs import needs_of, snapshots, text_bytes
from truecast.audit.options import Options
from truecast.audit.pairing import check_models, check_tokenizers
from truecast.audit.place import check_disk, device_of, dtype_of
from truecast.audit.resume import Folder
from truecast.audit.scoring import Scores, score
from truecast.audit.spill import Store
from truecast.audit.stored import check_unchanged, count_reads
from truecast.audit.stream import Pass, Progress, layers_of, run_layers
from truecast.audit.summary import summary
from truecast.audit.tiles import make_tiles
from truecast.errors import RefusedError
from truecast.layouts.recognise import recognise
from truecast.models import open_model
from truecast.models.base import Decoder
from truecast.models.taps import PLAIN

TILE_SLACK = 1.25


def audit(
    ref: str, cand: str, corpus: Path, out: Path | None, options: Options, progress: Progress | None = None
) -> dict[str, Any]:
    """Audit checkpoint ``cand`` against ``ref`` on the documents of ``corpus``. Returns the document of the audit.

    ``out``: folder for positions, layers and the document, from which a stopped run goes on; None keeps nothing.
    Raises: InputError for what does not belong together; RefusedError where memory or disk is too small, or ``out``
    belongs to another audit.
    """
    device = device_of(options.device)
    models = tuple(open_model(location, device=str(device), dtype=options.dtype) for location in (ref, cand))
    return audit_models(models[0], models[1], corpus, out, options, progress)


def audit_models(
    ref: Decoder, cand: Decoder, corpus: Path, out: Path | None, options: Options, progress: Progress | None = None
) -> dict[str, Any]:
    """The same for models that are open already."""
    began = time.monotonic()
    stamps = (ref.checkpoint.stamps(), cand.checkpoint.stamps())
    device = device_of(options.device)
    check_models(ref, cand)
    documents = read_corpus(corpus, ref.vocab, options.limit)
    check_tokenizers(ref, cand, documents)
    check_counted_once(documents)
    check_disjoint(cand.checkpoint, documents)
    emulated = _emulation(cand, options)
    return_freed_memory()
    dtype = options.dtype or dtype_of(device)
    needs = needs_of((ref, cand), documents, dtype, device)
    sizes = fit(options.memory, needs, device)
    with ExitStack() as stack:
        path = out if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="truecast-")))
        document = head(ref, cand, documents, options, device, dtype)
        whose = identity(document, stamps, options.seeds)
        folder = stack.enter_context(Folder(path, whose, {"tile_tokens": sizes.tile_tokens}))
        if (done := folder.result()) is not None:
            return done
        check_tile(folder.chosen["tile_tokens"], sizes, path)
        counters = (count_reads(ref.checkpoint), count_reads(cand.checkpoint))
        compared = 0
        if not options.force and emulated.plain and not folder.records():
            same = identical(ref, cand, sizes.ahead, progress)
            compared = sum(c.bytes for c in counters)
            if same:
                for model, before in zip((ref, cand), stamps, strict=True):
                    check_unchanged(model.checkpoint, before)
                read = {"bytes": compared, "checkpoint_bytes": text_bytes((ref, cand)), "compared_bytes": 0}
                document |= {**nothing_lost(documents), "read": read, "seconds": time.monotonic() - began}
                folder.finish(document)
                return document
        tiles = make_tiles([len(d.tokens) for d in documents.documents], folder.chosen["tile_tokens"])
        store = Store(folder.states, [t.tokens for t in tiles], ref.hidden, dtype, sizes.kept_bytes)
        stack.callback(store.close)
        runs = 2 + len(options.seeds)
        smaller = "a smaller corpus or fewer --floor-seeds"
        check_disk(folder.states, runs * (2 + snapshots(ref.checkpoint)) * store.bytes_each, smaller)
        taps = PLAIN if emulated.plain else emulated
        work = Pass(
            ref, cand, documents, tiles, store, device, taps, options.seeds, options.force, counters, stamps, compared
        )
        document |= _measure(work, folder, sizes, progress)
        document["read"]["checkpoint_bytes"] = text_bytes((ref, cand))
        document["seconds"] = time.monotonic() - began
        store.close()
        folder.finish(document)
        return document


def _measure(work: Pass, folder: Folder, sizes: Fit, progress: Progress | None) -> dict[str, Any]:
    """The pass through the layers and the comparison at its end; positions and layers are saved."""
    states, records = run_layers(work, folder, sizes.ahead, progress)
    scores = score(work, states, sizes, progress)
    work.check_unchanged()
    layers = list(layers_of(records))
    _save(folder.out, scores, layers)
    return {
        "identical": False,
        **summary(scores.positions, scores.floor or None, [d.id for d in work.corpus.documents]),
        "layers": layers,
        "final_error": scores.final_error,
        "read": {
            "bytes": sum(record["read"] for record in records) + scores.read,
            "compared_bytes": records[0].get("compared", 0),
        },
    }


def _emulation(cand: Decoder, options: Options) -> Emulation:
    wanted = options.activations in ("fp8-tensor", "nvfp4")
    matrices = recognise(cand.checkpoint.tensors).matrices.values() if wanted else ()
    return emulation(options.activations, options.kv, cand.checkpoint, matrices)


def check_tile(begun_with: int, sizes: Fit, out: Path) -> None:
    """A run that goes on keeps the first run's tiles; a little less memory than then is no reason to stop."""
    if begun_with > TILE_SLACK * sizes.tile_tokens:
        raise RefusedError(
            f"was begun with tiles of {begun_with:,} tokens, and this memory holds {sizes.tile_tokens:,}",
            where=str(out),
            fix="give it as much memory as then, or remove the folder and start again",
        )


def _save(out: Path, scores: Scores, layers: Sequence[Mapping[str, Any]]) -> None:
    scores.positions.save(out / "positions")
    for seed, kl in scores.floor.items():
        np.save(out / "positions" / f"floor-{seed}.npy", kl, allow_pickle=False)
    (out / "layers.json").write_text(json.dumps(layers, indent=1) + "\n")
