"""The parts of an audit's document that need no statistics, and what makes two runs the same audit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from truecast import __version__
from truecast.audit.corpus import Corpus
from truecast.audit.options import Options
from truecast.audit.stored import Stamps
from truecast.checkpoint.source import Checkpoint
from truecast.models.base import Decoder

SCHEMA = "truecast.audit/1"


def identity(document: Mapping[str, Any], stamps: Sequence[Stamps], seeds: Sequence[int]) -> dict[str, Any]:
    """What must agree for a stopped run to go on. Values are compared; keys are told to the user.

    ``document`` is that of :func:`head`; ``stamps`` of the reference's and the candidate's shards.
    """
    return {
        "reference": _whose(document["reference"], stamps[0]),
        "candidate": _whose(document["candidate"], stamps[1]),
        "corpus": document["corpus"]["sha256"],
        "limit": document["corpus"]["limit"],
        "activations": document["activations"],
        "kv": document["kv"],
        "floor seeds": list(seeds),
        "force": document["force"],
        "device": document["device"],
        "dtype": document["dtype"],
        "version": __version__,
    }


def head(
    ref: Decoder, cand: Decoder, corpus: Corpus, options: Options, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """What was compared, on what, and how."""
    return {
        "schema": SCHEMA,
        "reference": _side(ref.checkpoint),
        "candidate": _side(cand.checkpoint),
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


def nothing_lost(corpus: Corpus) -> dict[str, Any]:
    """The figures where all weights are equal: none had to be computed."""
    scored = sum(d.scored for d in corpus.documents)
    zero = {"mean": 0.0, "se": 0.0, "interval": [0.0, 0.0], "documents": len(corpus.documents), "tokens": scored}
    return {"identical": True, "kl": zero, "reverse_kl": {"mean": 0.0}, "top1": {"agreement": 1.0}, "layers": []}


def _side(checkpoint: Checkpoint) -> dict[str, str]:
    return {
        "location": checkpoint.location,
        "fingerprint": checkpoint.fingerprint(),
        "weights": checkpoint.weights_sha256(),
    }


def _whose(side: Mapping[str, str], stamps: Stamps) -> str:
    told = json.dumps(stamps, sort_keys=True)
    return hashlib.sha256(f"{side['fingerprint']}\n{side['weights']}\n{told}".encode()).hexdigest()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
