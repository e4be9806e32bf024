"""Files of ``--out``: reproducible, and nobody else's is replaced."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.serve.launch.conftest import DSPARK, Launch
from truecast.errors import RefusedError, UsageError
from truecast.serve.launch.folder import NAMES, write_launch

NANO = Path(__file__).parents[3] / "examples" / "nano_k3" / "checkpoint"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_plan_gives_the_same_bytes(launch: Launch, tmp_path: Path) -> None:
    plan = launch("w4afp8", "gh200:8x8", replicas=2, draft=DSPARK)
    for name in ("one", "two"):
        assert {p.name for p in write_launch(plan, tmp_path / name)} == set(NAMES)
    write_launch(plan, tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert str(tmp_path).encode() not in b"".join(contents(tmp_path / "one").values())


def test_own_files_are_replaced_and_stale_ones_removed(launch: Launch, tmp_path: Path) -> None:
    write_launch(launch("mxfp4", "h200:8x8", replicas=2), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    one = launch("mxfp4", "h200:4x8")
    write_launch(one, tmp_path)
    assert set(contents(tmp_path)) == {*NAMES, "notes.txt"} - {"router.sh"}
    write_launch(one, tmp_path / "fresh")
    assert contents(tmp_path / "fresh")["node.sh"] == (tmp_path / "node.sh").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_somebody_else_stays(name: str, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / name).write_text("#!/bin/sh\n\n# Written by truecast launch, said somebody further down\n")
    before = contents(tmp_path)
    with pytest.raises(RefusedError, match=f"{name}: is there already, and truecast launch has not written it"):
        write_launch(launch("mxfp4", "h200:4x8"), tmp_path)
    assert contents(tmp_path) == before


def test_a_link_or_folder_in_the_place_of_a_file(launch: Launch, tmp_path: Path) -> None:
    plan, elsewhere = launch("mxfp4", "h200:4x8"), tmp_path / "elsewhere"
    write_launch(plan, elsewhere)
    before = contents(elsewhere)
    for out, make in (("a", "symlink"), ("b", "mkdir")):
        (tmp_path / out).mkdir()
        target = tmp_path / out / "node.sh"
        target.symlink_to(elsewhere / "node.sh") if make == "symlink" else target.mkdir()
        with pytest.raises(RefusedError):
            write_launch(plan, tmp_path / out)
    assert contents(elsewhere) == before


def test_a_folder_that_cannot_be(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        write_launch(launch("mxfp4", "h200:4x8"), tmp_path / "file" / "out")


def test_on_the_command_line(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    words = ("launch", NANO, "--topology", "h200:2x1", "--sglang", "0.5.20", "--out", tmp_path / "out")
    done = cli(*words, "--json")
    assert done.code == 0
    assert {Path(path).name for path in done.json["files"]} == {p.name for p in (tmp_path / "out").iterdir()}
    assert f"wrote {tmp_path}/out/job.slurm\n" in cli(*words).out
    (tmp_path / "out" / "lws.yaml").write_text("mine: 1\n")
    refused = cli(*words, "--json")
    assert (refused.code, json.loads(refused.out)["exit_code"]) == (3, 3)


def test_nothing_is_written_through_what_lies_there(launch: Launch, tmp_path: Path) -> None:
    """A file of any name that is guessed beforehand may be a link to elsewhere, or a pipe that nobody reads."""
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    out.mkdir()
    elsewhere.write_text("mine")
    for name in NAMES:
        (out / f".{name}.partial").symlink_to(elsewhere)
    write_launch(launch("mxfp4", "h200:4x8"), out)
    assert elsewhere.read_text() == "mine"
    assert {path.name for path in out.iterdir()} == {*NAMES, *(f".{name}.partial" for name in NAMES)} - {"router.sh"}
