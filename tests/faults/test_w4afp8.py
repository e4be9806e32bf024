"""``--to w4afp8`` is the same byte for byte however it is run: jobs, shard sizes, kills at random instants."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.shaped import kimi_k3
from tests.convert.decoding import load
from truecast.checkpoint.header import encode_header
from truecast.convert import Target, convert
from truecast.report.card import render_card

KILLS = 5
Tree = Callable[[Path], dict[str, str]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("w4afp8") / "source"
    kimi_k3.make(folder, shape=kimi_k3.K3Shape(layers=6, experts=8, latent=256, expert_width=128, heads=4))
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    bank = "language_model.model.layers.*.block_sparse_moe.experts.*."
    lengths = {"w1": 256, "w2": 128, "w3": 256}
    header = encode_header([(bank + leaf, "F32", (n,)) for leaf, n in lengths.items()], {})
    path.write_bytes(header + np.random.default_rng(0).random(640).astype("<f4").tobytes())
    return path


@pytest.fixture(scope="module")
def target(weights: Path) -> Target:
    return Target("w4afp8", weights=weights)


@pytest.fixture(scope="module")
def undisturbed(source: Path, target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    convert(source, out, target, card=render_card)
    return out


def test_jobs(
    source: Path, weights: Path, undisturbed: Path, shell: Callable[..., Any], tree: Tree, tmp_path: Path
) -> None:
    """Three processes, from the command line and with a relative path to the weights."""
    done = shell(
        "convert",
        source,
        tmp_path / "out",
        "--to",
        "w4afp8",
        "--weights",
        weights.name,
        "--jobs",
        3,
        cwd=weights.parent,
    )
    assert done.code == 0, done.err
    assert tree(tmp_path / "out") == tree(undisturbed)


@pytest.mark.parametrize("dialect", ["sglang", "compressed-tensors"])
@pytest.mark.parametrize("limit", [20_000, 100_000])
def test_max_shard_size(source: Path, tmp_path: Path, dialect: str, limit: int) -> None:
    """Other files, the same tensors; no part of a matrix is parted from the others, and no matrix counted twice."""
    one = convert(source, tmp_path / "one", Target("w4afp8", dialect))
    other = convert(source, tmp_path / "other", Target("w4afp8", dialect, max_shard_bytes=limit))
    before, after = load(tmp_path / "one"), load(tmp_path / "other")
    assert {n: (t.dtype, t.shape, t.data) for n, t in after.items()} == {
        n: (t.dtype, t.shape, t.data) for n, t in before.items()
    }
    assert (one["int4"], one["fp8"]) == (other["int4"], other["fp8"])
    assert len({t.file for t in after.values()}) > len({t.file for t in before.values()})
    for name in one["int4"]["matrices"] | one["fp8"]["matrices"]:
        assert len({t.file for n, t in after.items() if n.startswith(name + ".")}) == 1


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_instants(
    seed: int, source: Path, target: Target, undisturbed: Path, tree: Tree, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    out, shards = tmp_path / "out", {p.name: p.read_bytes() for p in undisturbed.glob("*.safetensors")}
    begun = time.monotonic()
    _wait(_start(source, tmp_path / "timed", target))
    total = time.monotonic() - begun
    killed = 0
    while killed < KILLS:
        child = _start(source, out, target)
        time.sleep(rng.uniform(0, total))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(_wait(child))
        for shard in out.glob("*.safetensors"):
            assert shard.read_bytes() == shards[shard.name]
        if (out / "truecast.json").exists():
            shutil.rmtree(out)  # too late
    assert _wait(_start(source, out, target)) == 0
    assert tree(out) == tree(undisturbed)
    assert not list(out.rglob("*.partial"))


def _start(source: Path, out: Path, target: Target) -> int:
    """Convert in a fork, where the compiled loops are loaded already. Returns its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            convert(source, out, target, card=render_card)
            os._exit(0)
        finally:
            os._exit(70)
    return child


def _wait(child: int) -> int:
    return os.waitpid(child, 0)[1]
