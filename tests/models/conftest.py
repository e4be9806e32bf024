from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.models import k3_checkpoint
from tests.models.reference_k3 import Reference, read_tensors


@pytest.fixture(scope="session")
def k3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Kimi-K3 in MXFP4; not to be changed."""
    return k3_checkpoint.make(tmp_path_factory.mktemp("models") / "k3")


@pytest.fixture
def own_k3(k3: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(k3, tmp_path / "k3"))


@pytest.fixture(scope="session")
def reference(k3: Path) -> Reference:
    """The slow implementation on the same checkpoint."""
    return Reference(read_tensors(k3), json.loads((k3 / "config.json").read_text())["text_config"])
