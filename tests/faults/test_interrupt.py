"""Ctrl-C, a lost worker and errors in the middle: a clear end, no process left, and the same command goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process import Process


@pytest.mark.parametrize("seed", range(2))
def test_interrupt_at_random_instants(
    seed: int, start: Callable[..., Any], k3: Path, reference: Any, tree: Callable[[Path], Any], tmp_path: Path
) -> None:
    """From the moment that the first worker is born; twice, then to the end."""
    rng = random.Random(100 + seed)
    out = tmp_path / "out"
    for _ in range(2):
        run = start(k3, out)
        run.until(run.workers)
        if seed:  # the first one at once
            time.sleep(rng.uniform(0, 0.6 * reference.total_s))
        _interrupt(run)
        assert reference.same_shards(out)
    assert start(k3, out).wait()[0] == 0
    assert tree(out) == reference.tree


def test_interrupt_at_the_borders_of_phases(
    start: Callable[..., Any], k3: Path, reference: Any, tree: Callable[[Path], Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for phase in ("workers start", "a shard begins", "a shard stands"):
        before = len(list(out.glob("*.safetensors")))
        run = start(k3, out)
        conditions = {
            "workers start": run.workers,
            "a shard begins": lambda: any(out.glob("*.partial")),
            "a shard stands": lambda run=run, before=before: len(run.shards()) > before,
        }
        run.until(conditions[phase])
        _interrupt(run)
        assert reference.same_shards(out)
        assert not list(out.rglob("*.partial"))
    assert start(k3, out).wait()[0] == 0
    assert tree(out) == reference.tree


def test_interrupt_while_the_program_loads(command: Callable[..., list[str]], environment: dict[str, str]) -> None:
    loading = {**environment, "PYTHONPROFILEIMPORTTIME": "1"}  # a line on stderr for each module that was imported
    with Process(
        command("inspect", "nowhere"), env=loading, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        seen = next(line for line in process.stderr if "numpy.version" in line)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, ""), seen + err
    assert "Traceback" not in err
    assert err.endswith("truecast: interrupted\n")


def _interrupt(run: Any) -> None:
    begun = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        run.interrupt()
    code, out, err = run.wait()
    run.assert_gone()
    if code != 0:  # not over before
        assert (code, out) == (130, ""), err
        assert err == "truecast convert: interrupted; the same command goes on from here\n"
        assert time.monotonic() - begun < 5


def test_worker_lost_before_the_first_shard_stands(
    start: Callable[..., Any], k3: Path, reference: Any, tree: Callable[[Path], Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = start(k3, out)
    run.until(lambda: any(out.glob("*.partial")))
    for pid in run.workers():
        os.kill(pid, signal.SIGKILL)
    code, _, err = run.wait()
    assert (code, err) == (
        3,
        "truecast convert: a worker process was killed, most likely for memory;"
        " run the same command again, with fewer --jobs\n",
    )
    assert not list(out.rglob("*.partial"))  # they take space
    assert start(k3, out).wait()[0] == 0
    assert tree(out) == reference.tree
