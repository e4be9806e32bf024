"""Small checkpoints of every source layout, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.shaped import deepseek_v4, gpt_oss, kimi_k3


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    kimi_k3.make(folder / "kimi_k3")
    gpt_oss.make(folder / "gpt_oss")
    deepseek_v4.make(folder / "deepseek_v4")
    return {name: folder / name for name in ("kimi_k3", "gpt_oss", "deepseek_v4")}
