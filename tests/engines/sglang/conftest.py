"""A small world for the plug-in: modules under SGLang's names, and fixes made for a test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest

from truecast.engines.sglang import start
from truecast.engines.sglang.fix import Fix, Hook, Need
from truecast.engines.sglang.situation import Situation

Place = Callable[[str, Mapping[str, Any]], ModuleType]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Puts a module with these contents under a dotted name, and its parents."""

    def put(name: str, contents: Mapping[str, Any]) -> ModuleType:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            here = ".".join(parts[:end])
            if here not in sys.modules:
                monkeypatch.setitem(sys.modules, here, ModuleType(here))
            module = sys.modules[here]
            if end < len(parts) and not hasattr(module, "__path__"):
                monkeypatch.setattr(module, "__path__", [], raising=False)
            if end > 1:
                monkeypatch.setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module, raising=False)
        for key, value in contents.items():
            setattr(module, key, value)
        return module

    return put


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is applied, printed or waited for yet, and nothing is chosen."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(start, "_applied", {})
    monkeypatch.setattr(start, "_printed", set())
    monkeypatch.delenv("TRUECAST_SGLANG", raising=False)
    yield


def make_fix(
    name: str = "made-up",
    *,
    need: Need | None = Need("it is asked for", required=False),  # noqa: B008
    faulty: bool | str = True,
    hooks: tuple[Hook, ...] = (),
    selftest: str = "",
    settings: Mapping[str, Callable[[str], object]] | None = None,
) -> Fix:
    """``faulty`` as text is what is not found; ``selftest`` as text is what comes out wrong."""

    def is_faulty(sources: object) -> bool:
        if isinstance(faulty, str):
            raise LookupError(faulty)
        return faulty

    def check(situation: Situation) -> None:
        assert not selftest, selftest

    return Fix(
        name=name,
        summary=f"what {name} does",
        versions=("0.5.17", "0.5.24"),
        need=lambda situation: need,
        faulty=is_faulty,
        hooks=lambda situation: hooks,
        selftest=check,
        settings=settings or {},
    )
