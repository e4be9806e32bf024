from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import Process
from truecast.bench import processes

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system has no /proc")


@pytest.fixture
def child() -> Iterator[int]:
    """A process in a session of its own."""
    pipe = subprocess.PIPE
    command = ["/bin/sh", "-c", "echo; read x"]
    with Process(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until then it may still show no command line
        yield process.pid


def test_the_members_of_a_session(child: int) -> None:
    assert list(processes.members(child)) == [(child, "/bin/sh -c echo; read x ")]
    assert child not in dict(processes.members(os.getsid(0)))
    assert list(processes.members(-1)) == []


@pytest.mark.parametrize(
    ("title", "sends", "records"),
    [
        ("aiperf worker_1a2b", True, False),
        ("aiperf worker_manager", False, False),
        ("aiperf record_processor_1a", False, True),
        ("aiperf records_manager", False, True),
        ("/home/worker_1/records_2/bin/python", False, False),
    ],
)
def test_which_processes_send_and_which_only_record(
    monkeypatch: pytest.MonkeyPatch, child: int, title: str, sends: bool, records: bool
) -> None:
    monkeypatch.setattr(processes, "members", lambda _: iter([(child, title)]))
    assert bool(processes.worker_seconds(0)) == sends
    before = os.getpriority(os.PRIO_PROCESS, child)
    processes.let_records_wait(0)
    assert os.getpriority(os.PRIO_PROCESS, child) == (processes.LATER if records else before)
