"""inspect-ai leaves streams of its own open; they are collected here, where nobody takes that for a fault of a test."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def collected() -> Iterator[None]:
    """Collect what inspect left, its warnings unheard."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
