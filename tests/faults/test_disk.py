"""A disk that is full, becomes full, or cannot be written."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from truecast.convert.execute import MARGIN_BYTES

MB = 1 << 20


@pytest.fixture
def needed(reference: Any) -> int:
    """Bytes of the whole output."""
    return sum(p.stat().st_size for p in reference.folder.glob("*.*"))


@pytest.mark.parametrize("megabytes", [1, 16, 64])
def test_too_small_from_the_start(
    megabytes: int, mount: Callable[..., Path], start: Callable[..., Any], k3: Path, reference: Any,
    tree: Callable[[Path], Any],
) -> None:  # fmt: skip
    disk = mount(megabytes * MB)
    out = disk / "out"
    code, stdout, err = start(k3, out).wait()
    assert (code, stdout) == (3, "")
    assert err.startswith(f"truecast convert: {out}: ")
    assert "GB are to be written, 0.0" in err
    assert err.endswith("GB are free; free space, or choose a folder on another disk\n")
    assert list(disk.iterdir()) == []  # nothing written
    if megabytes == 64:
        mount(512 * MB, disk)
        assert start(k3, out).wait()[0] == 0
        assert tree(out) == reference.tree


def test_not_even_room_for_the_journal(mount: Callable[..., Path], start: Callable[..., Any], k3: Path) -> None:
    disk = mount(1 * MB)
    _fill(disk, leave=0)
    code, _, err = start(k3, disk / "out").wait()
    assert code == 3
    assert "the disk is full; free space and run the same command again" in err or "GB are free" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("share", [0.0, 0.6, 0.999])
def test_becomes_full(
    share: float, mount: Callable[..., Path], start: Callable[..., Any], k3: Path, reference: Any,
    tree: Callable[[Path], Any], needed: int,
) -> None:  # fmt: skip
    """Somebody else fills it after the first look at it; ``share`` of the output still fits."""
    disk = mount(needed + MARGIN_BYTES + 8 * MB)
    out = disk / "out"
    run = start(k3, out)
    run.until(run.workers)  # the look comes before them
    filler = _fill(disk, leave=int(needed * share))
    code, stdout, err = run.wait()
    assert (code, stdout) == (3, ""), err
    assert err.startswith(f"truecast convert: {out}/")
    assert err.endswith(": the disk is full; free space and run the same command again\n")
    run.assert_gone()
    assert reference.same_shards(out)
    assert not list(out.rglob("*.partial"))
    filler.unlink()
    assert start(k3, out).wait()[0] == 0
    assert tree(out) == reference.tree


def _fill(disk: Path, leave: int) -> Path:
    filler = disk / "filler"
    free = os.statvfs(disk)
    with filler.open("wb") as file:
        size = free.f_bavail * free.f_frsize - leave
        while size > 0:
            try:
                os.posix_fallocate(file.fileno(), filler.stat().st_size, min(size, MB))
            except OSError:
                break
            size -= MB
    return filler


def test_read_only(mount: Callable[..., Path], start: Callable[..., Any], k3: Path, reference: Any) -> None:
    disk = mount(256 * MB)
    shutil.copytree(reference.folder, disk / "done")
    mount(256 * MB, disk, read_only=True)
    for name in ("out", "done"):
        code, stdout, err = start(k3, disk / name).wait()
        assert (code, stdout) == (2, "")
        assert err == (
            f"truecast convert: {disk / name}: cannot write: Read-only file system; choose a writable folder\n"
        )


def _without_roots_rights() -> None:
    """In the child: root loses the rights to pass over permissions. For others there is nothing to lose."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_no_permission(tiny: Path, tmp_path: Path, shell: Callable[..., Any]) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    (tmp_path / "shut").mkdir(mode=0o000)
    try:
        if os.geteuid() == 0 and shell("inspect", tmp_path / "shut", preexec_fn=_without_roots_rights).err.count(
            "holds"
        ):
            pytest.skip("root's rights cannot be dropped here")
        for out, place in (("closed/out", "closed/out"), ("shut", "shut"), ("shut/out", "shut/out")):
            arguments = ("convert", tiny, tmp_path / out, "--to", "nvfp4", "--jobs", 1)
            outcome = shell(*arguments, preexec_fn=_without_roots_rights)
            assert outcome.code == 2, outcome.err
            assert outcome.err == (
                f"truecast convert: {tmp_path / place}: cannot write: Permission denied; choose a writable folder\n"
            )
        for source in ("shut", "shut/source", "shut/one.safetensors"):
            outcome = shell("inspect", tmp_path / source, preexec_fn=_without_roots_rights)
            assert outcome.code == 2
            assert outcome.err == f"truecast inspect: {tmp_path / source}: cannot open: Permission denied\n"
        shard = tiny / "model-00002-of-00003.safetensors"
        shard.chmod(0o000)
        outcome = shell("convert", tiny, tmp_path / "new", "--to", "nvfp4", preexec_fn=_without_roots_rights)
        assert (outcome.code, outcome.err) == (2, f"truecast convert: {shard}: cannot open: Permission denied\n")
        assert not (tmp_path / "new").exists()
    finally:
        (tmp_path / "shut").chmod(0o700)
