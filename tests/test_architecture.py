"""A dependency only ever points down the table of rooms; read from the imports themselves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "truecast"

MAY_IMPORT = {
    "formats": set(),
    "checkpoint": set(),
    "layouts": {"formats", "checkpoint"},
    "families": set(),
    "casts": {"formats"},
    "convert": {"formats", "checkpoint", "layouts", "families", "casts"},
    "verify": {"formats", "checkpoint", "layouts", "families"},
    "models": {"formats", "checkpoint", "layouts", "families"},
    "statistics": set(),
    "audit": {"formats", "checkpoint", "layouts", "families", "models", "statistics"},
    "bench": {"statistics"},
    "evals": {"statistics"},
    "engines": {"formats"},
    "serve": {"checkpoint", "layouts", "families", "models", "engines"},
    "report": set(),
    "cli": {
        "formats",
        "checkpoint",
        "layouts",
        "families",
        "casts",
        "convert",
        "verify",
        "models",
        "audit",
        "bench",
        "evals",
        "serve",
        "report",
    },
}
MAY_USE_TORCH = ("models", "audit", "engines", "serve/reference", "casts/int4_cuda.py")
"""Rooms and files that import torch; the rest of the package works without it."""

EVERYWHERE = {"errors", "compiled", "__version__"}
THIRD_PARTY = {
    "formats": {"numpy", "ml_dtypes"},
    "checkpoint": {"fsspec"},
    "families": set(),
    "models": {"numpy", "torch", "tiktoken", "tokenizers", "triton"},
    "statistics": {"numpy"},
    "audit": {"numpy", "torch"},
    "bench": {"numpy"},
    "evals": {
        "numpy",
        "inspect_ai",
        "yaml",
        "datasets",
        "math_verify",
        "latex2sympy2_extended",
        "ifbench",
    },
    "serve": {"numpy", "torch", "fastapi", "pydantic", "starlette", "uvicorn"},
    "report": set(),
    "engines": {"numpy", "torch", "triton", "sglang", "safetensors"},
    "casts": {"numpy", "ml_dtypes", "numba", "torch", "triton"},
}
VERIFY_MAY_NOT_USE = {"truecast.formats.exact"}


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            assert node.module is not None
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_files() -> list[Path]:
    return sorted(p for p in SRC.rglob("*.py") if p.parent != SRC)


@pytest.mark.parametrize("path", room_files(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(SRC).parts[0]
    for name in imports_of(path):
        top, *rest = name.split(".")
        if top == "truecast" and rest:
            assert rest[0] in {room} | MAY_IMPORT[room] | EVERYWHERE, f"{path.name} imports {name}"
        elif room in THIRD_PARTY and not is_standard_library(top):
            assert top in THIRD_PARTY[room], f"{path.name} imports {name}"


def is_standard_library(name: str) -> bool:
    import sys

    return name in sys.stdlib_module_names


def test_every_room_is_in_the_table() -> None:
    rooms = {p.name for p in SRC.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("path", sorted((SRC / "verify").rglob("*.py")), ids=lambda p: p.name)
def test_verify_shares_no_encoder_with_the_writer(path: Path) -> None:
    used = imports_of(path)
    assert not {n for n in used if n.startswith(tuple(VERIFY_MAY_NOT_USE)) or ".encode_nearest_even" in n}
    text = path.read_text()
    assert "encode_nearest_even" not in text
    assert "pow2_byte" not in text


def test_nothing_is_unpickled_or_executed() -> None:
    forbidden = {"pickle", "runpy", "marshal", "shelve"}
    for path in room_files():
        with_torch = path.relative_to(SRC).as_posix().startswith(MAY_USE_TORCH)
        banned = forbidden if with_torch else forbidden | {"torch"}
        assert not {n for n in imports_of(path) if n.split(".")[0] in banned}, path
        assert not re.search(r"\btorch\.(load|jit|hub)\b", path.read_text()), path
