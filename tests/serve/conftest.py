"""Kimi-K3 in its released size as a deployment sees it."""

from __future__ import annotations

import fcntl
import pickle
from pathlib import Path

import pytest

from truecast.checkpoint.source import open_checkpoint
from truecast.serve.stored_model import StoredModel, stored_model


@pytest.fixture(scope="session")
def k3(full_k3: Path) -> StoredModel:
    """What its 497,220 headers say; they are read by one test process only."""
    kept = full_k3.parent / "model.pickle"
    with (full_k3.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(pickle.dumps(stored_model(open_checkpoint(full_k3))))
    model = pickle.loads(kept.read_bytes())
    assert isinstance(model, StoredModel)
    return model
