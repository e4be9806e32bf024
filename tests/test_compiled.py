"""Where compiled functions are kept, nothing that happens to the files changes a result or ends a command."""

from __future__ import annotations

import importlib.util
import resource
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Load = Callable[[], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import, each time anew, a module with a compiled function, kept in ``tmp_path / "kept"``."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "kept"))
    source = tmp_path / "doubling.py"
    source.write_text("from truecast.compiled import compiled\n@compiled\ndef double(x):\n    return 2 * x\n")

    def fresh() -> ModuleType:
        spec = importlib.util.spec_from_file_location("doubling", source)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return fresh


def kept(tmp_path: Path) -> list[Path]:
    return sorted(p for p in (tmp_path / "kept").rglob("*") if p.is_file())


def hits(module: ModuleType) -> int:
    return sum(module.double.stats.cache_hits.values())


def test_it_is_kept(load: Load, tmp_path: Path) -> None:
    assert load().double(21) == 42
    assert {p.suffix for p in kept(tmp_path)} == {".nbi", ".nbc"}
    again = load()
    assert again.double(21) == 42 and hits(again) == 1


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"", lambda data: data[::-1]])
def test_damaged_files_are_replaced(load: Load, tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    load().double(21)
    for path in kept(tmp_path):
        if path.suffix == suffix:
            path.write_bytes(damage(path.read_bytes()))
    damaged = load()
    assert damaged.double(21) == 42 and hits(damaged) == 0
    healed = load()
    assert healed.double(21) == 42 and hits(healed) == 1


def test_without_room_it_is_compiled_every_time(load: Load, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # the index has room, the code has none
    try:
        assert load().double(21) == 42
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert kept(tmp_path) == []


def test_without_any_folder(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(function: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("truecast.compiled._Kept", nowhere)
    assert load().double(21) == 42
    assert not (tmp_path / "kept").exists()
