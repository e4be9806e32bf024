"""The node: clock, limits, shared memory, where the checkpoint and compiled kernels lie, CPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serve.doctor.made import DISK, GIB, MEMORY, MadeMachine, check_of
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.host import CHECKS
from truecast.serve.machine import Clock, FileSystem, Limits
from truecast.serve.stored_model import StoredModel


def judge(id: str, ground: Ground, status: str, words: str) -> None:
    verdict = check_of(CHECKS, id)(ground)
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


@pytest.mark.parametrize(
    ("clock", "status", "words"),
    [
        (Clock(True, 0.002), "PASS", "0.002 s off"),
        (Clock(True, 4.0), "WARN", "4.000 s off"),
        (Clock(False, 16.0), "WARN", "STA_UNSYNC"),
        (None, "UNKNOWN", "adjtimex"),
    ],
)
def test_clock(clock: Clock | None, status: str, words: str) -> None:
    judge("node.clock", Ground(machine=MadeMachine(time=clock)), status, words)


@pytest.mark.parametrize(
    ("files", "status"),
    [((1024, 1 << 20), "PASS"), ((1024, 4096), "WARN"), ((None, None), "PASS"), ((65535, 65535), "PASS")],
)
def test_files(files: tuple[int | None, int | None], status: str) -> None:
    judge("node.files", Ground(machine=MadeMachine(limit=Limits(files, (None, None)))), status, "open files")


@pytest.mark.parametrize(
    ("free", "tp", "status"),
    [(64 * GIB, "8", "PASS"), (64 << 20, "8", "FAIL"), (64 << 20, "1", "WARN"), (512 << 20, "8", "WARN")],
)
def test_shared_memory(free: int, tp: str, status: str) -> None:
    machine = MadeMachine(disks={"/": DISK, "/dev/shm": replace(MEMORY, free=free, size=free)})
    judge("node.shared-memory", Ground(machine=machine, arguments={"--tp-size": tp}), status, "/dev/shm")


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("ext4", "PASS", "on ext4"),
        ("tmpfs", "WARN", "takes the memory"),
        ("overlay", "WARN", "container's own layers"),
        ("nfs4", "WARN", "over the network"),
        ("fuse.s3fs", "WARN", "over the network"),
        ("lustre", "WARN", "over the network"),
        ("fuse.fuse-overlayfs", "PASS", ""),
    ],
)
def test_storage(k3: StoredModel, tmp_path: Path, kind: str, status: str, words: str) -> None:
    model = replace(k3, location=str(tmp_path))
    machine = MadeMachine(disks={"/": DISK, str(tmp_path.resolve()): FileSystem(kind, "/models", 4000 * GIB, GIB)})
    judge("node.storage", Ground(machine=machine, model=model), status, words)


def test_storage_beyond_memory_and_elsewhere(k3: StoredModel, tmp_path: Path) -> None:
    model = replace(k3, location=str(tmp_path))
    judge("node.storage", Ground(machine=MadeMachine(ram=GIB), model=model), "PASS", "does not fit in the page cache")
    judge(
        "node.storage", Ground(machine=MadeMachine(in_cache=0.25), model=model), "PASS", "25% of it in the page cache"
    )
    remote = replace(k3, location="s3://bucket/k3")
    judge("node.storage", Ground(machine=MadeMachine(), model=remote), "SKIP", "no folder here")
    judge("node.storage", Ground(machine=MadeMachine()), "SKIP", "no checkpoint")


@pytest.mark.parametrize(
    ("environment", "free", "status"),
    [
        ({"HOME": "/root"}, 2000 * GIB, "PASS"),
        ({"HOME": "/root"}, GIB // 2, "FAIL"),
        ({"TRITON_CACHE_DIR": "/scratch/triton"}, 2000 * GIB, "PASS"),
        ({}, 2000 * GIB, "SKIP"),
    ],
)
def test_room(environment: dict[str, str], free: int, status: str) -> None:
    machine = MadeMachine(disks={"/": replace(DISK, free=free)})
    judge("node.room", Ground(machine=machine, environment=environment), status, "")


@pytest.mark.parametrize(
    ("governors", "status"),
    [(("performance",), "PASS"), (("powersave",), "WARN"), (("performance", "schedutil"), "WARN"), ((), "SKIP")],
)
def test_governor(governors: tuple[str, ...], status: str) -> None:
    judge("node.governor", Ground(machine=MadeMachine(governed=governors)), status, "")


def test_a_server_elsewhere(k3: StoredModel) -> None:
    """This machine then says nothing of it; where the address is one of this machine, it does."""

    def status(url: str) -> set[str]:
        server: Any = SimpleNamespace(url=url)
        ground = Ground(server=server, machine=MadeMachine(), environment={"HOME": "/root"}, arguments={}, model=k3)
        return {str(check_of(CHECKS, check.id)(ground).status) for check in CHECKS if check.id != "node.storage"}

    assert status("http://10.9.9.9:30000") == {"SKIP"}
    assert status("http://10.0.0.5:30000") == {"PASS"}


def test_no_machine() -> None:
    assert {str(check_of(CHECKS, check.id)(Ground()).status) for check in CHECKS} == {"SKIP"}
