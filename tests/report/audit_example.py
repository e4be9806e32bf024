"""A realistic audit document, made from simulated positions: what the page's tests and its screenshot are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from truecast.audit.positions import Positions
from truecast.audit.summary import summary

LAYERS = 12


def simulated(documents: int = 48, seed: int = 0, mean_tokens: int = 500, cost: float = 0.015) -> Positions:
    """Positions of a plausible audit: KL falls with the reference's confidence, differs by document, flips near ties."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(20, rng.lognormal(np.log(mean_tokens), 0.5, documents)).astype(int)
    n = int(lengths.sum())
    doc = np.repeat(np.arange(documents, dtype=np.int32), lengths)
    pos = np.concatenate([np.arange(size, dtype=np.int32) for size in lengths])
    top = rng.beta(1.2, 0.45, n).clip(0.02, 0.99999)
    margin = (np.log(top / (1 - top)).clip(0) + rng.exponential(0.4, n)).astype(np.float32)
    dear = np.repeat(rng.lognormal(0, 0.45, documents), lengths)
    kl = cost * dear * rng.lognormal(-0.9, 1.35, n) * (0.03 + 4 * top * (1 - top))
    reverse = kl * rng.lognormal(0, 0.1, n)
    nll_ref = rng.exponential(-np.log(top) + 0.05)
    nll_cand = nll_ref + kl + np.sqrt(2 * kl) * rng.standard_normal(n) * 0.5
    flipped = rng.random(n) < 0.5 * np.exp(-margin / (2 * np.sqrt(kl)))
    return Positions(doc, pos, kl, reverse, nll_ref, nll_cand, top.astype(np.float32), margin, ~flipped)


def example(documents: int = 48, seed: int = 0, floor: bool = True, names: list[str] | None = None) -> dict[str, Any]:
    """The whole document of ``truecast.audit/1`` for :func:`simulated` positions."""
    positions = simulated(documents, seed)
    rng = np.random.default_rng(seed + 1)
    floors = {s: positions.kl * 0.04 * rng.lognormal(0, 0.6, len(positions)) for s in (0, 1, 2)} if floor else None
    names = names or [
        f"{kind}-{i:03d}" for i, kind in zip(range(documents), ["prose", "dialogue", "code"] * documents, strict=False)
    ]
    errors = np.cumsum(rng.lognormal(-6.5, 0.5, LAYERS)) + 2e-3
    return {
        "schema": "truecast.audit/1",
        "reference": {"location": "models/nano-k3", "fingerprint": "5e3c" * 16},
        "candidate": {"location": "models/nano-k3-w4afp8", "fingerprint": "71d0" * 16},
        "corpus": {
            "location": "held-out.jsonl",
            "sha256": "9a3f" * 16,
            "documents": documents,
            "tokens": len(positions) + documents,
            "scored": len(positions),
        },
        "device": "cpu",
        "dtype": "float32",
        "activations": "fp8-token",
        "kv": "none",
        "identical": False,
        "layers": [
            {"layer": i, "relative_error": float(e), "max_error": float(40 * e), "floor_error": 1e-3 * (1 + i) ** 0.5}
            for i, e in enumerate(errors)
        ],
        "read": {"bytes": 105_000_000, "checkpoint_bytes": 103_000_000},
        "seconds": 84.2,
        **summary(positions, floors, names),
    }
