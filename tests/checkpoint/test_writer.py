from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import Process
from truecast.checkpoint.writer import FileWriter, explained, write_file
from truecast.errors import InputError, RefusedError


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_final_name_appears_only_on_commit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    writer = FileWriter(path)
    writer.write(b"abc")
    writer.write(memoryview(b"def"))
    assert not path.exists()
    assert (tmp_path / "x.partial").read_bytes() == b"abcdef"
    assert writer.position == 6
    assert writer.commit() == sha256(b"abcdef")
    assert path.read_bytes() == b"abcdef"
    assert list(tmp_path.iterdir()) == [path]


def test_any_buffer_is_written_as_bytes(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "x")
    writer.write(memoryview(b"\1\2\3\4\5\6\7\0").cast("I"))
    writer.write(b"")
    assert writer.commit() == sha256(b"\1\2\3\4\5\6\7\0")
    assert (tmp_path / "x").stat().st_size == writer.position == 8


def test_an_existing_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"older and longer")
    writer = FileWriter(path)
    writer.write(b"new")
    assert path.read_bytes() == b"older and longer"
    writer.commit()
    assert path.read_bytes() == b"new"


def test_a_partial_left_by_a_kill_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "x.partial").write_bytes(b"left over, longer than what comes")
    writer = FileWriter(tmp_path / "x")
    writer.write(b"new")
    writer.commit()
    assert (tmp_path / "x").read_bytes() == b"new"


def test_the_record_is_written_before_the_rename(tmp_path: Path) -> None:
    path = tmp_path / "x"
    seen = []

    def before_rename(digest: str) -> None:
        seen.append((digest, path.exists(), (tmp_path / "x.partial").read_bytes()))

    writer = FileWriter(path)
    writer.write(b"abc")
    writer.commit(before_rename)
    assert seen == [(sha256(b"abc"), False, b"abc")]


def test_if_the_record_fails_there_is_no_final_name(tmp_path: Path) -> None:
    def before_rename(digest: str) -> None:
        raise RefusedError("no record")

    writer = FileWriter(tmp_path / "x")
    with pytest.raises(RefusedError, match="no record"):
        writer.commit(before_rename)
    writer.abort()
    assert not list(tmp_path.iterdir())


def test_abort_leaves_nothing_and_may_be_called_twice(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "x")
    writer.write(b"abc")
    writer.abort()
    writer.abort()
    assert not list(tmp_path.iterdir())


HOLD = """
import sys, pathlib
from truecast.checkpoint.writer import FileWriter
writer = FileWriter(pathlib.Path(sys.argv[1]))
writer.write(b"theirs")
print("held", flush=True)
sys.stdin.readline()
writer.commit()
"""


def test_a_second_process_is_refused_and_the_first_unharmed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with Process(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RefusedError, match="another process") as caught:
            FileWriter(path)
        assert caught.value.exit_code == 3
        assert (tmp_path / "x.partial").read_bytes() == b"theirs"
        other.communicate("\n")
    assert path.read_bytes() == b"theirs"


def test_a_writer_that_comes_while_another_commits_does_not_empty_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opened the partial file, waited a moment for the lock, and now holds the file under its final name."""
    path = tmp_path / "x"
    first = FileWriter(path)
    first.write(b"first")
    real_open = os.open

    def open_then_first_commits(*args: int, **kwargs: int) -> int:
        fd = real_open(*args, **kwargs)
        monkeypatch.setattr(os, "open", real_open)
        first.commit()
        return fd

    monkeypatch.setattr(os, "open", open_then_first_commits)
    second = FileWriter(path)
    assert path.read_bytes() == b"first"
    second.write(b"second")
    assert path.read_bytes() == b"first"
    second.commit()
    assert path.read_bytes() == b"second"


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write") as caught:
        FileWriter(tmp_path / "none" / "x")
    assert str(tmp_path / "none" / "x") in str(caught.value)


def test_a_full_disk_is_refused_with_a_remedy(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "x")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._fd)
    os.close(full)
    with pytest.raises(RefusedError, match="disk is full") as caught:
        writer.write(b"abc")
    assert "run the same command again" in str(caught.value)
    writer.abort()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "kind", "word"),
    [
        (errno.ENOSPC, RefusedError, "disk is full"),
        (errno.EDQUOT, RefusedError, "disk is full"),
        (errno.EROFS, InputError, "writable folder"),
        (errno.EACCES, InputError, "writable folder"),
        (errno.EIO, InputError, "Input/output error"),
    ],
)
def test_refusals_of_the_operating_system(number: int, kind: type[Exception], word: str) -> None:
    with pytest.raises(kind, match=word) as caught, explained(Path("/some/file")):
        raise OSError(number, os.strerror(number))
    assert "/some/file" in str(caught.value)


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError), explained(Path("/some/file")):
        raise KeyError("x")


def test_a_partial_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "x.partial").symlink_to("precious")
    with pytest.raises(InputError, match="cannot write"):
        FileWriter(tmp_path / "x")
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_late_abort_does_not_remove_another_writers_file(tmp_path: Path) -> None:
    first = FileWriter(tmp_path / "x")
    first.commit()
    second = FileWriter(tmp_path / "x")
    second.write(b"second")
    first.abort()
    second.commit()
    assert (tmp_path / "x").read_bytes() == b"second"


def test_write_file_makes_folders_and_leaves_no_partial(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.json"
    assert write_file(path, b"abc") == sha256(b"abc")
    assert path.read_bytes() == b"abc"
    assert list(path.parent.iterdir()) == [path]


# ---- copies ----------------------------------------------------------------------------------------------------------

SIZES = [0, 1, 5000, (1 << 20) - 1, 1 << 20, (3 << 20) + 17]


@pytest.fixture(params=["same file system", "another file system"])
def source_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "same file system":
        yield tmp_path
        return
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system under /dev/shm")
    with tempfile.TemporaryDirectory(dir=shm) as folder:
        yield Path(folder)


@pytest.mark.parametrize("size", SIZES)
def test_copies_are_exact_hashed_and_appended(source_folder: Path, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    source = source_folder / "source"
    source.write_bytes(data)
    writer = FileWriter(tmp_path / "copy")
    writer.write(b"before")
    with source.open("rb") as file:
        writer.copy_from(file.fileno(), size)
    writer.write(b"after")
    assert writer.position == size + 11
    assert writer.commit() == sha256(b"before" + data + b"after")
    assert (tmp_path / "copy").read_bytes() == b"before" + data + b"after"
    assert source.read_bytes() == data


@pytest.mark.parametrize("missing", [1, 1 << 20, (2 << 20) + 5])
def test_a_source_that_ends_early_is_noticed(source_folder: Path, tmp_path: Path, missing: int) -> None:
    source = source_folder / "source"
    source.write_bytes(os.urandom(3 << 20)[missing:])
    writer = FileWriter(tmp_path / "copy")
    with source.open("rb") as file, pytest.raises(InputError, match="ended early"):
        writer.copy_from(file.fileno(), 3 << 20)
    writer.abort()


def test_a_copy_stays_when_the_source_changes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100_000)
    writer = FileWriter(tmp_path / "copy")
    with source.open("rb") as file:
        writer.copy_from(file.fileno(), 100_000)
    writer.commit()
    with source.open("r+b") as file:
        file.write(b"changed")
    assert (tmp_path / "copy").read_bytes() == b"x" * 100_000
    assert (tmp_path / "copy").stat().st_ino != source.stat().st_ino
