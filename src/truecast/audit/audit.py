"""The audit: what a cast costs in nats per token, with each weight read once."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from truecast import __version__
from truecast.audit.activations import Emulation, emulation
from truecast.audit.corpus import Corpus, read_corpus
from truecast.audit.identical import identical
from truecast.audit.memory import (
    Fit,
    Needs,
    bytes_of_token,
    fit,
    loaded_bytes,
    return_freed_memory,
)
from truecast.audit.pairing import check_models, check_tokenizers
from truecast.audit.resume import Folder
from truecast.audit.scoring import Scores, score
from truecast.audit.spill import Store
from truecast.audit.stored import count_reads
from truecast.audit.stream import Pass, Progress, layers_of, run_layers
from truecast.audit.summary import summary
from truecast.audit.tiles import make_tiles
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError, RefusedError
from truecast.layouts.recognise import recognise
from truecast.models import open_model
from truecast.models.base import Decoder
from truecast.models.taps import PLAIN

SCHEMA = "truecast.audit/1"
SPARE_DISK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """How to audit. ``device``: ``auto``, ``cpu`` or ``cuda``. ``memory``: bytes of resident memory, None as it comes.

    ``seeds``: of the noise floor; empty for none. ``force``: compute both sides, even where they are equal.
    ``limit``: only the first documents. ``dtype``: None for float32 on the CPU and bfloat16 on a GPU.
    """

    device: str = "auto"
    memory: int | None = None
    activations: str = "none"
    kv: str = "none"
    seeds: tuple[int, ...] = (0, 1, 2)
    force: bool = False
    limit: int | None = None
    dtype: torch.dtype | None = None


def audit(
    ref: str, cand: str, corpus: Path, out: Path | None, options: Options, progress: Progress | None = None
) -> dict[str, Any]:
    """Audit checkpoint ``cand`` against ``ref`` on the documents of ``corpus``. Returns the document of the audit.

    ``out``: folder for positions, layers and the document, from which a stopped run goes on; None keeps nothing.
    Raises: InputError for what does not belong together; RefusedError where memory or disk is too small, or ``out``
    belongs to another audit.
    """
    device = _device(options.device)
    models = tuple(open_model(location, device=str(device), dtype=options.dtype) for location in (ref, cand))
    return audit_models(models[0], models[1], corpus, out, options, progress)


def audit_models(
    ref: Decoder, cand: Decoder, corpus: Path, out: Path | None, options: Options, progress: Progress | None = None
) -> dict[str, Any]:
    """The same for models that are open already."""
    began = time.monotonic()
    device = _device(options.device)
    check_models(ref, cand)
    documents = read_corpus(corpus, ref.vocab, options.limit)
    check_tokenizers(ref, cand, documents)
    emulated = _emulation(cand, options)
    return_freed_memory()
    dtype = options.dtype or _dtype(device)
    needs = _needs(ref, cand, documents, dtype, device)
    sizes = fit(options.memory, needs, device)
    with ExitStack() as stack:
        path = out if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="truecast-")))
        identity = _identity(ref, cand, documents, options, device, dtype)
        folder = stack.enter_context(Folder(path, identity, {"tile_tokens": sizes.tile_tokens}))
        if (done := folder.result()) is not None:
            return done
        counters = (count_reads(ref.checkpoint), count_reads(cand.checkpoint))
        document = _head(ref, cand, documents, options, device, dtype)
        compared = 0
        if not options.force and emulated.plain and not folder.records():
            same = identical(ref, cand, sizes.ahead, progress)
            compared = sum(c.bytes for c in counters)
            if same:
                document |= _nothing_lost(documents)
                document["read"] = {"bytes": compared, "checkpoint_bytes": _text_bytes(ref, cand), "compared_bytes": 0}
                document["seconds"] = time.monotonic() - began
                folder.finish(document)
                return document
        tiles = make_tiles([len(d.tokens) for d in documents.documents], folder.chosen["tile_tokens"])
        store = Store(folder.states, [t.tokens for t in tiles], ref.hidden, dtype, sizes.kept_bytes)
        stack.callback(store.close)
        runs = 2 + len(options.seeds)
        _check_disk(folder.states, runs * (2 + _snapshots(ref.checkpoint)) * store.bytes_each)
        taps = PLAIN if emulated.plain else emulated
        work = Pass(ref, cand, documents, tiles, store, device, taps, options.seeds, options.force, counters)
        states, records = run_layers(work, folder, sizes.ahead, progress)
        scores = score(work, states, sizes, progress)
        layers = list(layers_of(records))
        _save(path, scores, layers)
        document |= {"identical": False, **summary(scores.positions, scores.floor or None, [d.id for d in documents.documents])}
        document |= {"layers": layers, "final_error": scores.final_error}
        read = sum(record["read"] for record in records) + scores.read
        document["read"] = {"bytes": read, "checkpoint_bytes": _text_bytes(ref, cand), "compared_bytes": compared}
        document["seconds"] = time.monotonic() - began
        store.close()
        folder.finish(document)
        return document


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("this torch finds no CUDA device", where="--device cuda", fix="use --device cpu")
    return torch.device(name)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _emulation(cand: Decoder, options: Options) -> Emulation:
    wanted = options.activations in ("fp8-tensor", "nvfp4")
    matrices = recognise(cand.checkpoint.tensors).matrices.values() if wanted else ()
    return emulation(options.activations, options.kv, cand.checkpoint, matrices)


def _needs(ref: Decoder, cand: Decoder, corpus: Corpus, dtype: torch.dtype, device: torch.device) -> Needs:
    pairs = [[*ref.layer_tensors(i), *cand.layer_tensors(i)] for i in range(ref.layers)]
    plain = [t for pair in pairs for t in pair if len(t.shape) == 2 and t.dtype in ("BF16", "F16", "F32")]
    widest = max([ref.hidden, *(t.shape[0] for t in plain)])
    largest = max(t.nbytes for pair in pairs for t in pair)
    on_host = device.type == "cpu"
    heads = [*ref.head_tensors(), *cand.head_tensors()]
    embeddings = [ref.embedding_tensor(), cand.embedding_tensor()]
    return Needs(
        layer=max(loaded_bytes(pair, dtype) for pair in pairs) if on_host else 0,
        reading=largest * 3,
        token=bytes_of_token(ref.hidden, widest, _snapshots(ref.checkpoint), dtype),
        head=loaded_bytes(heads, dtype) if on_host else max(t.nbytes for t in heads),
        longest=max(len(d.tokens) for d in corpus.documents),
        tokens=corpus.tokens,
    )


def _snapshots(checkpoint: Checkpoint) -> int:
    """How many block residuals the model keeps by the end: none without AttnRes."""
    text = checkpoint.config.get("text_config", checkpoint.config)
    size, layers = text.get("attn_res_block_size"), text.get("num_hidden_layers")
    return -(-layers // size) if isinstance(size, int) and isinstance(layers, int) and size > 0 else 0


def _text_bytes(ref: Decoder, cand: Decoder) -> int:
    """Bytes of both sides' text models as stored: every tensor that an audit needs, once."""
    total = 0
    for model in (ref, cand):
        tensors = [t for i in range(model.layers) for t in model.layer_tensors(i)]
        tensors += [model.embedding_tensor(), *model.head_tensors()]
        total += sum(t.nbytes for t in {t.name: t for t in tensors}.values())
    return total


def _identity(
    ref: Decoder, cand: Decoder, corpus: Corpus, options: Options, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    return {
        "reference": _whose(ref.checkpoint),
        "candidate": _whose(cand.checkpoint),
        "corpus": corpus.sha256,
        "limit": options.limit,
        "activations": options.activations,
        "kv": options.kv,
        "floor seeds": list(options.seeds),
        "force": options.force,
        "device": device.type,
        "dtype": _name(dtype),
        "version": __version__,
    }


def _whose(checkpoint: Checkpoint) -> str:
    stamps = json.dumps(checkpoint.stamps(), sort_keys=True)
    return hashlib.sha256(f"{checkpoint.fingerprint()}\n{stamps}".encode()).hexdigest()


def _head(
    ref: Decoder, cand: Decoder, corpus: Corpus, options: Options, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "reference": {"location": ref.checkpoint.location, "fingerprint": ref.checkpoint.fingerprint()},
        "candidate": {"location": cand.checkpoint.location, "fingerprint": cand.checkpoint.fingerprint()},
        "corpus": {
            "location": corpus.location,
            "sha256": corpus.sha256,
            "tokenizer_sha256": corpus.tokenizer_sha256,
            "documents": len(corpus.documents),
            "tokens": corpus.tokens,
            "scored": sum(d.scored for d in corpus.documents),
            "limit": options.limit,
        },
        "device": device.type,
        "dtype": _name(dtype),
        "activations": options.activations,
        "kv": options.kv,
        "force": options.force,
    }


def _nothing_lost(corpus: Corpus) -> dict[str, Any]:
    """The figures where all weights are equal: none had to be computed."""
    scored = sum(d.scored for d in corpus.documents)
    zero = {"mean": 0.0, "se": 0.0, "interval": [0.0, 0.0], "documents": len(corpus.documents), "tokens": scored}
    return {"identical": True, "kl": zero, "reverse_kl": {"mean": 0.0}, "top1": {"agreement": 1.0}, "layers": []}


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free + sum(p.stat().st_size for p in folder.iterdir())
    if free < needed + SPARE_DISK_BYTES:
        raise RefusedError(
            f"the states of all runs may take {needed / 1e9:,.2f} GB, {free / 1e9:,.2f} GB are free",
            where=str(folder),
            fix="free space, choose a folder on another disk, or use a smaller corpus or fewer --floor-seeds",
        )


def _save(out: Path, scores: Scores, layers: list[Mapping[str, Any]]) -> None:
    scores.positions.save(out / "positions")
    for seed, kl in scores.floor.items():
        np.save(out / "positions" / f"floor-{seed}.npy", kl, allow_pickle=False)
    (out / "layers.json").write_text(json.dumps(layers, indent=1) + "\n")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


__all__ = ["Fit", "Options", "audit", "audit_models"]
