"""Kimi-K3 in its released size as a deployment sees it, made once for all test processes."""

from __future__ import annotations

import fcntl
import os
import pickle
from pathlib import Path

import pytest

from examples.shaped import kimi_k3
from truecast.checkpoint.source import open_checkpoint
from truecast.serve.stored_model import StoredModel, stored_model


@pytest.fixture(scope="session")
def k3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full Kimi-K3: true headers, files of the released size, contents that read as zeros."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "full-kimi-k3"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "made").exists():
            kimi_k3.make(shared / "Kimi-K3", shape=kimi_k3.FULL, sparse=True)
            (shared / "made").touch()
    return shared / "Kimi-K3"


@pytest.fixture(scope="session")
def k3(k3_folder: Path) -> StoredModel:
    """What its 497,220 headers say; they are read by one test process only."""
    kept = k3_folder.parent / "model.pickle"
    with (k3_folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(pickle.dumps(stored_model(open_checkpoint(k3_folder))))
    model = pickle.loads(kept.read_bytes())
    assert isinstance(model, StoredModel)
    return model
