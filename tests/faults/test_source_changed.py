"""A source that changes under a run, or between a run that was killed and its successor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _flip_last_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


def test_between_runs(
    start: Callable[..., Any], k3_copy: Path, reference: Any, tmp_path: Path, stamps: Callable[[Path], Any],
    tree: Callable[[Path], Any],
) -> None:  # fmt: skip
    out = tmp_path / "out"
    run = start(k3_copy, out)
    run.until(run.shards)
    run.kill_group()
    run.wait()
    victim = sorted(k3_copy.glob("*.safetensors"))[5]
    content, times = victim.read_bytes(), victim.stat()
    before = stamps(out)
    for change in (os.utime, _flip_last_byte):
        change(victim)
        assert victim.stat().st_size == len(content)
        code, stdout, err = start(k3_copy, out).wait()
        assert (code, stdout) == (3, "")
        assert err.startswith(f"truecast convert: {out}: ")
        assert victim.name in err  # which file
        assert "convert into another folder, or remove this one and start again" in err
        assert stamps(out) == before
    victim.write_bytes(content)  # the old source again: the run goes on
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert start(k3_copy, out).wait()[0] == 0
    assert tree(out) == reference.tree


def test_after_a_complete_run(
    tiny: Path, tmp_path: Path, cli: Callable[..., Any], stamps: Callable[[Path], Any]
) -> None:
    out = tmp_path / "out"
    assert cli("convert", tiny, out, "--to", "nvfp4", "--jobs", 1).code == 0
    before = stamps(out)
    _flip_last_byte(tiny / "model-00002-of-00003.safetensors")
    outcome = cli("convert", tiny, out, "--to", "nvfp4", "--jobs", 1)
    assert outcome.code == 3
    assert "model-00002-of-00003.safetensors" in outcome.err
    assert stamps(out) == before


@pytest.mark.parametrize("change", ["one byte", "grown", "truncated", "removed"])
def test_during_the_run(change: str, start: Callable[..., Any], k3_copy: Path, reference: Any, tmp_path: Path) -> None:
    """After the headers were read, before the first worker reads a scale."""
    out = tmp_path / "out"
    victim = sorted(k3_copy.glob("*.safetensors"))[8]
    size = victim.stat().st_size
    run = start(k3_copy, out)
    run.until(run.workers)
    if change == "one byte":
        _flip_last_byte(victim)
    elif change == "grown":
        with victim.open("ab") as file:
            file.write(b"\0")
    elif change == "truncated":
        os.truncate(victim, victim.stat().st_size - 1)
    else:
        victim.unlink()
    code, stdout, err = run.wait()
    assert stdout == ""
    problems = {
        "one byte": (3, "changed while it was read; convert from a source at rest"),
        "grown": (3, "changed while it was read; convert from a source at rest"),
        "truncated": (2, "ends at byte {0}, {1} wanted; is it still being written?"),
        "removed": (2, "cannot open: No such file or directory"),
    }
    problem = problems[change][1].format(size - 1, size)
    assert (code, err) == (problems[change][0], f"truecast convert: {victim}: {problem}\n")
    assert not (out / victim.name).exists()
    assert reference.same_shards(out)
    assert not list(out.rglob("*.partial"))
