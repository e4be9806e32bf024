"""Output folders that are somebody's: another run's, the source's, a different target's, a finished one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from truecast.checkpoint.source import open_checkpoint

Cli = Callable[..., Any]


def test_second_run_is_refused_while_the_first_lives(
    start: Callable[..., Any], k3: Path, reference: Any, tree: Callable[[Path], Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = start(k3, out)
    first.until(first.workers)
    code, stdout, err = start(k3, out).wait()
    assert (code, stdout) == (3, "")
    assert err == f"truecast convert: {out}: another run is writing this folder; wait for it to end\n"
    assert first.wait()[0] == 0
    assert tree(out) == reference.tree


def test_started_at_the_same_time(
    start: Callable[..., Any], k3: Path, reference: Any, tree: Callable[[Path], Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ended = [run.wait() for run in [start(k3, out) for _ in range(3)]]
    codes = sorted(code for code, _, _ in ended)
    assert codes[0] == 0 and set(codes) <= {0, 3}
    assert all("another run is writing this folder" in err for code, _, err in ended if code == 3)
    assert tree(out) == reference.tree


def test_removed_during_the_run(start: Callable[..., Any], k3: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = start(k3, out)
    run.until(run.workers)
    shutil.rmtree(out)
    code, stdout, err = run.wait()
    assert (code, stdout) == (2, "")
    assert err.startswith(f"truecast convert: {out}/") and err.endswith(": cannot write: No such file or directory\n")


def test_same_bytes_for_any_jobs_and_any_place(
    start: Callable[..., Any], k3: Path, k3_copy: Path, reference: Any, tree: Callable[[Path], Any], tmp_path: Path
) -> None:
    """Inline and with more processes than cores; from a copy at another path with other times."""
    assert start(k3_copy, tmp_path / "one", jobs=1).wait()[0] == 0
    assert start(k3, tmp_path / "three", jobs=3).wait()[0] == 0
    assert tree(tmp_path / "one") == tree(tmp_path / "three") == reference.tree


def test_same_bytes_for_any_jobs_when_split_anew(
    start: Callable[..., Any], k3: Path, tree: Callable[[Path], Any], tmp_path: Path
) -> None:
    for jobs in (1, 2):
        code, _, err = start(k3, tmp_path / f"jobs{jobs}", "--max-shard-size", "5MB", jobs=jobs).wait()
        assert code == 0, err
    assert tree(tmp_path / "jobs1") == tree(tmp_path / "jobs2")
    shards = sorted(p.name for p in (tmp_path / "jobs1").glob("*.safetensors"))
    assert shards[-1] == f"model-{len(shards):05d}-of-{len(shards):05d}.safetensors"
    assert len(shards) > 2


def test_who_may_finish_a_killed_run(
    start: Callable[..., Any],
    k3: Path,
    reference: Any,
    tree: Callable[[Path], Any],
    stamps: Callable[[Path], Any],
    tmp_path: Path,
) -> None:
    """Another number of jobs may, another dialect may not."""
    out = tmp_path / "out"
    run = start(k3, out)
    run.until(run.shards)
    run.kill_group()
    run.wait()
    before = stamps(out)
    code, _, err = start(k3, out, "--dialect", "compressed-tensors").wait()
    assert code == 3
    assert "belongs to a run with other options: --dialect modelopt there, compressed-tensors here;" in err
    assert stamps(out) == before
    assert start(k3, out, jobs=1).wait()[0] == 0
    assert tree(out) == reference.tree


@pytest.fixture
def done(tiny: Path, tmp_path: Path, cli: Cli) -> Path:
    """A finished conversion of the tiny checkpoint."""
    out = tmp_path / "done"
    assert cli("convert", tiny, out, "--to", "nvfp4", "--jobs", 1).code == 0
    return out


def test_complete_run_again_changes_nothing(
    tiny: Path, done: Path, cli: Cli, stamps: Callable[[Path], dict[str, tuple[int, int]]]
) -> None:
    before = stamps(done)
    first = cli("convert", tiny, done, "--to", "nvfp4", "--jobs", 2)
    assert first.code == 0
    assert stamps(done) == before
    assert cli("convert", tiny, done, "--to", "nvfp4", "--dialect", "modelopt").code == 0  # the default, spelt out
    assert stamps(done) == before


@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_complete_run_that_lost_a_file(
    damage: str, tiny: Path, done: Path, cli: Cli, tree: Callable[[Path], Any]
) -> None:
    """The manifest is no proof that the files are still there. What is gone is written again; an edit is not overwritten."""
    wanted = tree(done)
    for name in ("model-00002-of-00003.safetensors", "config.json"):
        content = (done / name).read_bytes()
        if damage == "removed":
            (done / name).unlink()
        else:
            (done / name).write_bytes(content[:-1])
        outcome = cli("convert", tiny, done, "--to", "nvfp4")
        if damage == "removed":
            assert outcome.code == 0
            assert (done / name).read_bytes() == content
            continue
        assert outcome.code == 3
        assert f"{done / name}: " in outcome.err
        assert "writes it again" in outcome.err
        assert (done / name).read_bytes() == content[:-1]
        (done / name).write_bytes(content)
    assert cli("convert", tiny, done, "--to", "nvfp4").code == 0
    assert tree(done) == wanted


@pytest.mark.parametrize("file", ["truecast.json", ".truecast/journal.json"])
@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b"\xff", None])
def test_damaged_notes(file: str, damage: bytes | None, tiny: Path, done: Path, cli: Cli) -> None:
    path = done / file
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1", b"2", 1) if damage is None else damage)
    outcome = cli("convert", tiny, done, "--to", "nvfp4")
    assert (outcome.code, outcome.out) == (3, "")
    assert "start again" in outcome.err
    path.write_bytes(content)
    assert cli("convert", tiny, done, "--to", "nvfp4").code == 0


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (("nvfp4", "--dialect", "compressed-tensors"), "--dialect modelopt there, compressed-tensors here"),
        (("nvfp4", "--activations", "nvfp4"), "--activations none there, nvfp4 here"),
        (("nvfp4", "--max-shard-size", "1KB"), "--max-shard-size none there, 1000 bytes here"),
        (("nvfp4", "--inexact", "allow"), "--inexact error there, allow here"),
        (("bf16",), "--to nvfp4 there, bf16 here, --dialect modelopt there, bf16 here"),
    ],
)
def test_other_target(
    tiny: Path, done: Path, cli: Cli, stamps: Callable[[Path], Any], other: tuple[str, ...], told: str
) -> None:
    before = stamps(done)
    outcome = cli("convert", tiny, done, "--to", *other)
    assert outcome.code == 3
    assert outcome.out == ""
    assert outcome.err == (
        f"truecast convert: {done}: belongs to a run with other options: {told};"
        " convert into another folder, or remove this one and start again\n"
    )
    assert stamps(done) == before


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("source", "output and source folder lie in each other"),
        ("source/out", "output and source folder lie in each other"),
        ("source/a/../b/c", "output and source folder lie in each other"),
        (".", "output and source folder lie in each other"),
        ("link/out", "output and source folder lie in each other"),
        ("foreign", "is not empty and truecast did not write it"),
        ("file", "is a file, not a folder"),
        ("file/out", "cannot write: Not a directory"),
        ("dangling", "cannot write: File exists"),
        ("n" * 300, "cannot write: File name too long"),
    ],
)
def test_unsuitable(
    where: str, message: str, tiny: Path, tmp_path: Path, cli: Cli, stamps: Callable[[Path], Any]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    shutil.move(tiny, place / "source")
    (place / "link").symlink_to(place / "source")
    (place / "dangling").symlink_to(place / "nowhere")
    (place / "foreign").mkdir()
    (place / "foreign" / "thesis.txt").write_text("mine")
    (place / "file").write_text("mine")
    before = stamps(place)
    for verb_options in ((), ("--json",)):
        outcome = cli("convert", place / "source", place / where, "--to", "nvfp4", *verb_options)
        assert outcome.code == 2
        assert outcome.err.startswith(f"truecast convert: {place / where}: {message}")
    assert stamps(place) == before


def test_empty_folder_of_the_user_stays(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    """A refusal removes what the run made, not what was there."""
    out = tmp_path / "mine"
    out.mkdir()
    shard = tiny / "model-00001-of-00003.safetensors"
    data = bytearray(shard.read_bytes())
    data[_scale_offset(shard)] = 255
    shard.write_bytes(data)
    assert cli("convert", tiny, out, "--to", "nvfp4", "--jobs", 1).code == 2
    assert out.is_dir() and not list(out.iterdir())
    assert cli("convert", tiny, tmp_path / "new", "--to", "nvfp4", "--jobs", 1).code == 2
    assert not (tmp_path / "new").exists()


def _scale_offset(shard: Path) -> int:
    tensors = open_checkpoint(shard.parent).tensors
    return next(t.start for t in tensors.values() if t.file == shard.name and t.name.endswith("w1.weight_scale"))
