"""One small checkpoint with its records, for all tests of the card."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.report.card_example import Document, convert_small, documents


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Document]]:
    out = convert_small(tmp_path_factory.mktemp("card"))
    return out, documents(out)


@pytest.fixture
def out(small: tuple[Path, dict[str, Document]]) -> Path:
    return small[0]


@pytest.fixture
def made(small: tuple[Path, dict[str, Document]]) -> dict[str, Document]:
    """Records that a test may change."""
    return copy.deepcopy(small[1])
