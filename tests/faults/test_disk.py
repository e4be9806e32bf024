"""A disk that is full, becomes full, or cannot be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
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
    assert err.endswith("GB are free; free space\n")
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


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
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


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may look into; pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_no_permission(tiny: Path, open_folder: Path, shell: Callable[..., Any]) -> None:
    shutil.copytree(tiny, open_folder / "source")
    (open_folder / "closed").mkdir(mode=0o700)
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}
    convert = ("convert", open_folder / "source")
    if shell("--version", **nobody).code:
        pytest.skip("another user cannot read this Python")
    for out in ("out", "closed", "closed/out"):
        outcome = shell(*convert, open_folder / out, "--to", "nvfp4", **nobody)
        assert outcome.code == 2, outcome.err
        assert outcome.err.startswith(f"truecast convert: {open_folder}/{out.partition('/')[0]}")
        assert "Permission denied" in outcome.err
        assert "choose a writable folder" in outcome.err
        assert "Traceback" not in outcome.err
    for source in ("closed", "closed/source", "closed/one.safetensors"):
        outcome = shell("inspect", open_folder / source, **nobody)
        assert outcome.code == 2, outcome.err
        assert "Permission denied" in outcome.err
        assert "Traceback" not in outcome.err
    (open_folder / "source" / "model-00002-of-00003.safetensors").chmod(0o600)
    outcome = shell(*convert, open_folder / "out", "--to", "nvfp4", **nobody)
    assert outcome.code == 2
    assert "model-00002-of-00003.safetensors: cannot open: Permission denied" in outcome.err
