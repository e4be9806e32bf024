"""A client and a server of a benchmark on cores of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cores


@pytest.fixture
def threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 8 cores with two threads each: n and n + 8."""
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    for cpu in range(16):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")


@pytest.mark.usefixtures("threads")
def test_two_cores_are_one_thread_each_and_share_none_with_the_server() -> None:
    client, server = cores.split_cores(range(16), 2)
    assert client == {0, 1}
    assert server == {2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15}, "8 and 9 are the client's other threads"


@pytest.mark.usefixtures("threads")
def test_only_what_may_be_used_is_shared_out() -> None:
    assert cores.split_cores({3, 5, 11, 7}, 2) == ({3, 5}, {7}), "11 is a thread of core 3"
    assert cores.split_cores({3, 11}, 2) == ({3, 11}, {3, 11})
    assert cores.described({3, 11}, 2) == "client and server share 2 CPUs"
    assert cores.described({3, 5, 7}, 2) == "client (bench and AIPerf, every process) on CPUs 3,5; server on CPUs 7"


def test_a_list_of_threads_may_be_a_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    assert cores.siblings(4) == {4}, "a system that does not tell"
    (tmp_path / "cpu4" / "topology").mkdir(parents=True)
    (tmp_path / "cpu4" / "topology" / "thread_siblings_list").write_text("4-6,9\n")
    assert cores.siblings(4) == {4, 5, 6, 9}


def test_what_is_started_in_it_is_confined_too() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    with cores.confine(one):
        code = "import os; print(os.sched_getaffinity(0))"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == str(one)
    assert os.sched_getaffinity(0) == before
