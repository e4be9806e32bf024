"""Fixtures that several rooms share: the command line in a process of its own, and small checkpoints made by code."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import truecast
from examples.shaped import kimi_k3
from truecast.checkpoint.header import encode_header, nbytes_of
from truecast.cli.main import main

gc.set_threshold(100_000, 50, 100)
"""Headers of a full-size checkpoint are millions of objects without a cycle: at Python's thresholds scanning them again and
again took half of the time of tests that make one."""

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A job started in the background ignores Ctrl-C, and its children inherit that: the tests want it heard."""


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard() -> Iterator[None]:
    """A command that was interrupted in this process ignores Ctrl-C afterwards, and the next test's programs would too."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Name -> dtype, shape and content."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as the one JSON document that it must be."""
        return json.loads(self.out)


def _environment() -> dict[str, str]:
    source = str(Path(truecast.__file__).parents[1])
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONPATH")}
    return {**kept, "PYTHONPATH": source}


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment for a process that runs this checkout."""
    return _environment()


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """The argument vector of ``truecast ...``."""
    return lambda *args: [sys.executable, "-m", "truecast", *(str(a) for a in args)]


@pytest.fixture(scope="session")
def shell(command: Callable[..., list[str]], environment: dict[str, str]) -> Callable[..., Outcome]:
    """Run the command line as a process of its own, its output in pipes."""

    def run(*args: object, env: dict[str, str] | None = None, **options: Any) -> Outcome:
        done = subprocess.run(
            command(*args), env={**environment, **(env or {})}, capture_output=True, text=True, timeout=120, **options
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Outcome]]:
    """Run the command line inside this process; an exception that escapes it fails the test."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    before = logging.root.handlers[:]

    def run(*args: object) -> Outcome:
        capfd.readouterr()
        try:
            code = main([str(a) for a in args])
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    yield run
    gc.enable()
    logging.root.handlers[:] = before


@pytest.fixture(scope="session")
def write_checkpoint() -> Callable[..., Path]:
    """Write shards, index and config of a hand-made checkpoint."""

    def write(folder: Path, shards: dict[str, Tensors], config: Any = None, index: bool = True) -> Path:
        folder.mkdir(parents=True)
        weight_map = {}
        for file, tensors in shards.items():
            header = encode_header([(n, dtype, shape) for n, (dtype, shape, _) in tensors.items()], {"format": "pt"})
            (folder / file).write_bytes(header + b"".join(data for _, _, data in tensors.values()))
            weight_map.update(dict.fromkeys(tensors, file))
            for name, (dtype, shape, data) in tensors.items():
                assert len(data) == nbytes_of(dtype, shape), name
        if index:
            total = sum(len(data) for tensors in shards.values() for _, _, data in tensors.values())
            text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
            (folder / "model.safetensors.index.json").write_text(text)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return folder

    return write


@pytest.fixture(scope="session")
def tiny_shards() -> Callable[[], dict[str, Tensors]]:
    """Two experts over two shards with MXFP4 matrices, and a third shard without: new dicts at each call."""

    def pattern(size: int, seed: str) -> bytes:
        return hashlib.shake_256(seed.encode()).digest(size)

    def make() -> dict[str, Tensors]:
        shards: dict[str, Tensors] = {}
        for layer in range(2):
            tensors: Tensors = {}
            for name, rows, cols in (("w1", 4, 64), ("w2", 64, 32), ("w3", 4, 64)):
                module = f"model.layers.{layer}.mlp.experts.0.{name}"
                tensors[module + ".weight_packed"] = ("U8", (rows, cols // 2), pattern(rows * cols // 2, module))
                scales = bytes(118 + b % 6 for b in pattern(rows * cols // 32, module + "s"))
                tensors[module + ".weight_scale"] = ("U8", (rows, cols // 32), scales)
            tensors[f"model.layers.{layer}.mlp.gate.weight"] = ("BF16", (2, 8), pattern(32, f"gate{layer}"))
            shards[f"model-0000{layer + 1}-of-00003.safetensors"] = tensors
        shards["model-00003-of-00003.safetensors"] = {
            "lm_head.weight": ("BF16", (8, 8), pattern(128, "head")),
            "model.embed_tokens.weight": ("BF16", (8, 8), pattern(128, "embed")),
        }
        return shards

    return make


TINY_CONFIG = {"architectures": ["ToyForCausalLM"], "model_type": "toy", "hidden_size": 64}


@pytest.fixture
def tiny(tmp_path: Path, write_checkpoint: Callable[..., Path], tiny_shards: Callable[[], Any]) -> Path:
    """The tiny checkpoint on disk, with two auxiliary files."""
    folder = write_checkpoint(tmp_path / "tiny", tiny_shards(), TINY_CONFIG)
    (folder / "README.md").write_text("# toy\n")
    (folder / "chat").mkdir()
    (folder / "chat" / "template.jinja").write_text("{{ messages }}\n")
    return folder


def hashes(folder: Path) -> dict[str, str]:
    """Relative path -> sha256 of every file of an output folder, outside ``.truecast``."""
    files = {p.relative_to(folder): p for p in sorted(folder.rglob("*")) if p.is_file()}
    return {
        str(name): hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if name.parts[0] != ".truecast"
    }


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, str]]:
    """See :func:`hashes`."""
    return hashes


@pytest.fixture(scope="session")
def stamps() -> Callable[[Path], dict[str, tuple[int, int]]]:
    """Relative path -> size and mtime (ns) of everything under a folder."""
    return lambda folder: {
        str(p.relative_to(folder)): (p.lstat().st_size, p.lstat().st_mtime_ns) for p in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="session")
def full_k3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full Kimi-K3: true headers, files of the released size, contents that read as zeros. Made by one process for all."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "full-kimi-k3"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "made").exists():
            kimi_k3.make(shared / "Kimi-K3", shape=kimi_k3.FULL, sparse=True)
            (shared / "made").touch()
    return shared / "Kimi-K3"
