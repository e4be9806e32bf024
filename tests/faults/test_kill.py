"""``kill -9`` at any instant, then the same command again: the output is the same byte for byte."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import hashes
from truecast.convert import Target, convert
from truecast.report.card import render_card

VICTIMS = ("parent", "group", "worker")
FOLDERS = 5
KILLS_EACH = 4


@pytest.mark.parametrize("seed", range(FOLDERS))
def test_random_instants(
    seed: int, start: Callable[..., Any], k3: Path, reference: Any, tree: Callable[[Path], Any], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    out, kills = tmp_path / "out", 0
    while kills < KILLS_EACH:
        # half of the instants lie anywhere, half while shards are written
        instant = rng.uniform(reference.write_s * rng.choice((0, 1)), reference.total_s)
        run = start(k3, out)
        time.sleep(instant)
        kills += _kill(run, rng.choice(VICTIMS), rng)
        run.assert_gone()
        assert reference.same_shards(out)
        if (out / "truecast.json").exists():
            break  # the last file: nothing is left to disturb
    code, _, err = start(k3, out).wait()
    assert code == 0, err
    assert tree(out) == reference.tree
    assert not list(out.rglob("*.partial"))


def _kill(run: Any, victim: str, rng: random.Random) -> bool:
    """Kill, and see that the run ends as it should. False if it was over before."""
    workers = run.workers() if victim == "worker" else []
    if workers:
        try:
            os.kill(rng.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            workers = []
        code, _, err = run.wait()
        assert "Traceback" not in err
        assert code in (0, 3)
        if code == 3:
            assert "a worker process was killed" in err
            assert "run the same command again, with fewer --jobs" in err
        return bool(workers) and code == 3
    if victim == "group":
        run.kill_group()
    else:
        run.process.kill()
    code, _, err = run.wait()
    assert code in (0, -signal.SIGKILL), err
    return code != 0


EVENTS = ("open", "write", "ftruncate", "copy_file_range", "rename", "unlink", "mkdir", "fsync")


def test_every_step(tiny: Path, tmp_path: Path) -> None:
    """Not at random: before each single call that changes the disk, in a run of three shards.

    In a small process of its own: a test process has grown so large that forking it again and again takes long.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(_every_step, tiny, tmp_path).result()


def _every_step(tiny: Path, tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    assert _run_killed(tiny, undisturbed, None) == 0
    wanted = hashes(undisturbed)
    shards = {p.name: p.read_bytes() for p in undisturbed.glob("*.safetensors")}
    step = 0
    while True:
        out = tmp_path / f"out{step}"
        status = _run_killed(tiny, out, step)
        for shard in out.glob("*.safetensors"):
            assert shard.read_bytes() == shards[shard.name], step
        assert _run_killed(tiny, out, None) == 0, step
        assert hashes(out) == wanted, step
        assert not list(out.rglob("*.partial")), step
        if os.WIFEXITED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        step += 1
    assert step > 60  # there were that many instants


def _run_killed(source: Path, out: Path, step: int | None) -> int:
    """Convert in a fork that kills itself before its call number ``step``. Returns the wait status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            _die_at(step)
            convert(source, out, Target("nvfp4"), card=render_card)
            os._exit(0)
        finally:
            os._exit(70)
    return os.waitpid(child, 0)[1]


def _die_at(step: int | None) -> None:
    seen = 0

    def wrapped(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            reading = name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR)
            if seen == step and not reading:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += not reading
            return None if name == "fsync" else original(*args, **kwargs)  # a kill loses no page cache

        return call

    for name in EVENTS:
        setattr(os, name, wrapped(name))
