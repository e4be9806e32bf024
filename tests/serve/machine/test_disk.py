"""File systems by the kernel's table, and read rates of files that are really on a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from truecast.serve.machine import FileSystem, ThisMachine, disk

HERE = ThisMachine()
SIZE = 3 * disk.BLOCK + 5


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    found = HERE.file_system(tmp_path)
    if found is None or found.in_memory:
        pytest.skip("temporary files lie in memory here")
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(SIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path


def test_read_rate(on_disk: Path) -> None:
    found = HERE.read_rate([on_disk])
    assert found is not None and found.bytes == 3 * disk.BLOCK and found.seconds > 0
    assert found.rate == found.bytes / found.seconds and "1 files, 8 threads" in found.how


def test_without_direct_reads(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_opens_direct", lambda path: False)
    found = HERE.read_rate([on_disk])
    assert found is not None and found.bytes == 3 * disk.BLOCK and "forget" in found.how


def test_blocks_are_spread_over_all_files(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SAMPLE", 3 * disk.BLOCK)
    blocks = list(disk._spread([on_disk] * 3))
    assert [offset // disk.BLOCK for _, offset in blocks] == [0, 0, 0]


def test_no_time_left(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "PATIENCE", -1.0)
    assert HERE.read_rate([on_disk]) is None


def test_what_is_on_no_disk_has_no_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 30)
    small = tmp_path / "small"
    small.write_bytes(b"x" * 1000)
    assert HERE.read_rate([sparse, small, tmp_path / "none"]) is None and HERE.read_rate([]) is None


def test_memory_has_no_rate(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "file_system", lambda path: FileSystem("tmpfs", "/", 1, 1))
    assert disk.read_rate([on_disk]) is None


def test_what_lies_in_the_page_cache(on_disk: Path) -> None:
    on_disk.read_bytes()
    warm = HERE.cached([on_disk])
    if warm is None:
        pytest.skip("this file system cannot tell")
    with on_disk.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert (warm, HERE.cached([on_disk])) == (1.0, 0.0)
    assert HERE.cached([]) is None


def test_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    table = tmp_path / "mounts"
    real = str(folder.resolve()).replace(" ", "\\040")
    table.write_text(
        f"/dev/sda1 / ext4 rw 0 0\nbelow {real} nfs4 rw 0 0\nabove {real} fuse.s3fs rw 0 0\nx {real}c lustre rw 0 0\n"
    )
    monkeypatch.setattr(disk, "MOUNTS", table)
    found = HERE.file_system(folder / "not" / "yet")
    assert found is not None and (found.kind, found.mount) == ("fuse.s3fs", str(folder.resolve()))
    assert found.size >= found.free > 0 and found.over_network and not found.in_memory
    up = HERE.file_system(tmp_path)
    assert up is not None and (up.kind, up.mount) == ("ext4", "/")
    monkeypatch.setattr(disk, "MOUNTS", tmp_path / "none")
    assert HERE.file_system(folder) is None
