from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process import Process
from truecast.checkpoint.files import LocalFile
from truecast.checkpoint.header import TensorInfo
from truecast.checkpoint.index import encode_index
from truecast.checkpoint.journal import FOLDER, Journal, write_record
from truecast.checkpoint.writer import FileWriter
from truecast.errors import InputError, RefusedError

IDENTITY: dict[str, Any] = {"source": "s", "plan": "p", "version": "1", "stamps": {"x": [3, 4]}}


def finish_shard(out: Path, name: str, data: bytes = b"abc") -> None:
    writer = FileWriter(out / name)
    writer.write(data)
    writer.commit(lambda sha256: write_record(out, name, {"bytes": len(data), "sha256": sha256}))


def test_records_come_back_in_the_next_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Journal(out, IDENTITY) as journal:
        assert journal.finished() == {}
        finish_shard(out, "a.safetensors")
    with Journal(out, IDENTITY) as journal:
        (record,) = journal.finished().values()
    assert record["bytes"] == 3


def test_a_record_without_its_shard_does_not_count(tmp_path: Path) -> None:
    """Killed between the record and the rename."""
    with Journal(tmp_path, IDENTITY) as journal:
        write_record(tmp_path, "a.safetensors", {"bytes": 3})
        (tmp_path / "a.safetensors.partial").write_bytes(b"abc")
        assert journal.finished() == {}
        assert not (tmp_path / "a.safetensors.partial").exists()


@pytest.mark.parametrize("data", [b"", b"ab", b"abcd"])
def test_a_shard_of_another_size_does_not_count(tmp_path: Path, data: bytes) -> None:
    with Journal(tmp_path, IDENTITY) as journal:
        finish_shard(tmp_path, "a.safetensors")
        (tmp_path / "a.safetensors").write_bytes(data)
        assert journal.finished() == {}


def test_a_shard_without_a_record_does_not_count(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY) as journal:
        (tmp_path / "a.safetensors").write_bytes(b"abc")
        assert journal.finished() == {}


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY):
        pass
    (tmp_path / "a.safetensors.partial").write_bytes(b"half")
    (tmp_path / FOLDER / "shards").mkdir()
    (tmp_path / FOLDER / "shards" / "a.safetensors.json.partial").write_bytes(b"half")
    with Journal(tmp_path, IDENTITY) as journal:
        assert journal.finished() == {}
        assert not list(tmp_path.glob("*.partial"))
        assert not list((tmp_path / FOLDER / "shards").iterdir())


def test_options_tell_in_what_a_plan_differs_and_decide_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY | {"options": {"--to": "a", "--method": "exact"}}):
        finish_shard(tmp_path, "a.safetensors")
    with pytest.raises(RefusedError, match="with other options: --method exact there, amax here") as caught:
        Journal(tmp_path, IDENTITY | {"plan": "q", "options": {"--to": "a", "--method": "amax"}})
    assert caught.value.exit_code == 3
    for options in ({"--to": "a", "--method": "exact"}, ["x"], None):
        with pytest.raises(RefusedError, match="a different plan"):
            Journal(tmp_path, IDENTITY | {"plan": "q", "options": options})
    for same in (IDENTITY, IDENTITY | {"options": {"--to": "b"}}):  # not there in older journals, or spelt otherwise
        with Journal(tmp_path, same) as journal:
            assert set(journal.finished()) == {"a.safetensors"}


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="truecast did not write it") as caught:
        Journal(tmp_path, IDENTITY)
    assert caught.value.exit_code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        Journal(tmp_path / "out", IDENTITY)


def test_an_empty_folder_is_fine(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY):
        assert (tmp_path / FOLDER / "journal.json").exists()


@pytest.mark.parametrize("key", sorted(IDENTITY))
def test_a_different_identity_is_refused(tmp_path: Path, key: str) -> None:
    with Journal(tmp_path, IDENTITY):
        finish_shard(tmp_path, "a.safetensors")
    with pytest.raises(RefusedError, match=f"different {key}") as caught:
        Journal(tmp_path, IDENTITY | {key: "other"})
    assert caught.value.exit_code == 3
    without = {k: v for k, v in IDENTITY.items() if k != key}
    with pytest.raises(RefusedError, match=f"different {key}"):
        Journal(tmp_path, without)
    with Journal(tmp_path, IDENTITY) as journal:  # and nothing was lost
        assert set(journal.finished()) == {"a.safetensors"}


def test_a_shard_written_to_since_is_named(tmp_path: Path) -> None:
    before = IDENTITY | {"stamps": {"a.safetensors": [3, 4], "b.safetensors": [3, 4]}}
    with Journal(tmp_path, before):
        finish_shard(tmp_path, "a.safetensors")
    for stamps in ({"a.safetensors": [3, 4], "b.safetensors": [3, 5]}, {"a.safetensors": [3, 4]}):
        with pytest.raises(RefusedError, match=r"b\.safetensors was written to"):
            Journal(tmp_path, before | {"stamps": stamps})


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_damaged_journal_is_refused(tmp_path: Path, text: str) -> None:
    with Journal(tmp_path, IDENTITY):
        pass
    (tmp_path / FOLDER / "journal.json").write_text(text)
    with pytest.raises(RefusedError, match="damaged"):
        Journal(tmp_path, IDENTITY)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    with Journal(tmp_path, IDENTITY) as journal:
        finish_shard(tmp_path, "a.safetensors")
        (tmp_path / FOLDER / "shards" / "a.safetensors.json").write_text(text)
        with pytest.raises(RefusedError, match="damaged"):
            journal.finished()


def test_two_runs_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY):
        with pytest.raises(RefusedError, match="another run") as caught:
            Journal(tmp_path, IDENTITY)
        assert caught.value.exit_code == 3
    with Journal(tmp_path, IDENTITY):
        pass


HOLD = """
import sys, pathlib, json
from truecast.checkpoint.journal import Journal
with Journal(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path), json.dumps(IDENTITY)]
    with Process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RefusedError, match="another run"):
            Journal(tmp_path, IDENTITY)
        other.send_signal(signal.SIGKILL)
        other.wait()
    with Journal(tmp_path, IDENTITY) as journal:
        assert journal.finished() == {}


class Failed(Exception):
    pass


def test_a_fresh_run_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Failed), Journal(out, IDENTITY):
        raise Failed
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_after_a_shard_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(Failed), Journal(tmp_path, IDENTITY):
        finish_shard(tmp_path, "a.safetensors")
        raise Failed
    with Journal(tmp_path, IDENTITY) as journal:
        assert set(journal.finished()) == {"a.safetensors"}


def test_a_fresh_run_that_fails_beside_half_a_shard_stays_resumable(tmp_path: Path) -> None:
    """A worker died with its partial file: without the journal the folder would pass for somebody else's."""
    with pytest.raises(Failed), Journal(tmp_path, IDENTITY):
        (tmp_path / "a.safetensors.partial").write_bytes(b"half")
        raise Failed
    with Journal(tmp_path, IDENTITY) as journal:
        assert journal.finished() == {}


def test_a_resumed_run_that_fails_keeps_the_folder(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY):
        pass
    with pytest.raises(Failed), Journal(tmp_path, IDENTITY):
        raise Failed
    assert (tmp_path / FOLDER / "journal.json").exists()


def test_a_refused_run_keeps_no_lock(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY):
        pass
    for _ in range(3):
        with pytest.raises(RefusedError):
            Journal(tmp_path, IDENTITY | {"plan": "other"})
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(RefusedError):
        Journal(tmp_path, IDENTITY | {"plan": "other"})
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_index_is_what_was_written() -> None:
    tensors = {
        "b": TensorInfo("b", "U8", (3,), "2.safetensors", 10, 13),
        "a": TensorInfo("a", "F32", (2,), "1.safetensors", 20, 28),
    }
    document = json.loads(encode_index(tensors))
    assert document == {
        "metadata": {"total_size": 11},
        "weight_map": {"a": "1.safetensors", "b": "2.safetensors"},
    }
    assert list(document["weight_map"]) == ["a", "b"]


def test_local_files_read_what_was_asked_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    with LocalFile(path) as file:
        assert file.size == 100
        assert bytes(file.read(10, 20)) == bytes(range(10, 20))
        assert bytes(file.read(5, 5)) == b""
        with pytest.raises(InputError, match="ends at byte 100, 101 wanted"):
            file.read(90, 101)
