"""A conversion of one to two seconds, started as a process group of its own so that it can be killed and watched."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from examples.shaped import kimi_k3
from examples.shaped.kimi_k3 import K3Shape

SHAPE = K3Shape(layers=9, experts=24, latent=256)
WAIT_S = 30.0


@dataclass
class Run:
    """A conversion at work. Signals sent to it are those of a kill, an out-of-memory killer or a terminal."""

    process: subprocess.Popen[str]
    out: Path
    started: float = field(default_factory=time.monotonic)

    def wait(self, timeout: float = 60.0) -> tuple[int, str, str]:
        """Exit code (minus the signal where it was killed), stdout and stderr."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def members(self) -> list[int]:
        """Living processes of the group, the parent excluded."""
        return [pid for pid in _group(self.process.pid) if pid != self.process.pid]

    def workers(self) -> list[int]:
        """Worker processes of its pool."""
        return [pid for pid in self.members() if b"spawn_main" in _command(pid)]

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is so, or the run has ended."""
        end = time.monotonic() + WAIT_S
        while not condition() and self.process.poll() is None:
            assert time.monotonic() < end, "the run did not get that far"
            time.sleep(0.001)

    def shards(self) -> list[Path]:
        """Shards that stand under their final name."""
        return sorted(self.out.glob("*.safetensors"))

    def interrupt(self) -> None:
        """What a terminal does on Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill_group(self) -> None:
        """Kill every process of the run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def assert_gone(self) -> None:
        """No process of the group lives on."""
        end = time.monotonic() + 5
        while self.members() and time.monotonic() < end:
            time.sleep(0.005)
        assert not self.members(), [_command(pid) for pid in self.members()]


def _group(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(group) == leader and state != "Z":
            found.append(int(entry.name))
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture(scope="session")
def k3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A K3-shaped source of twelve shards. Never changed: tests that change a source copy it."""
    folder = tmp_path_factory.mktemp("k3") / "source"
    kimi_k3.make(folder, shape=SHAPE)
    return folder


@pytest.fixture
def k3_copy(k3: Path, tmp_path: Path) -> Path:
    """A copy of the source, at another path and with other times, that a test may change."""
    return Path(shutil.copytree(k3, tmp_path / "elsewhere", copy_function=shutil.copyfile))


@pytest.fixture
def start(command: Callable[..., list[str]], environment: dict[str, str]) -> Iterator[Callable[..., Run]]:
    """Start ``convert SRC OUT --to nvfp4`` with more arguments; what still runs at the end of the test is killed."""
    runs: list[Run] = []

    def begin(source: Path, out: Path, *args: object, jobs: int = 2) -> Run:
        process = subprocess.Popen(
            command("convert", source, out, "--to", "nvfp4", "--jobs", jobs, *args),
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        runs.append(Run(process, out))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill_group()
        run.process.communicate()


@dataclass(frozen=True)
class Reference:
    """An undisturbed run: its folder, its tree, and when its phases began, in seconds after the start."""

    folder: Path
    tree: dict[str, str]
    write_s: float
    total_s: float

    def same_shards(self, out: Path) -> bool:
        """Is every shard under its final name in ``out`` complete and right?"""
        return all(p.read_bytes() == (self.folder / p.name).read_bytes() for p in out.glob("*.safetensors"))


@pytest.fixture(scope="session")
def reference(
    k3: Path,
    tmp_path_factory: pytest.TempPathFactory,
    command: Callable[..., list[str]],
    environment: dict[str, str],
    tree: Callable[[Path], dict[str, str]],
) -> Reference:
    """The same conversion without a disturbance."""
    out = tmp_path_factory.mktemp("reference") / "out"
    begun, write_s = time.monotonic(), 0.0
    process = subprocess.Popen(
        command("convert", k3, out, "--to", "nvfp4", "--jobs", 2), env=environment, stdout=subprocess.DEVNULL
    )
    while process.poll() is None:
        if not write_s and any(out.glob("*.safetensors*")):
            write_s = time.monotonic() - begun
        time.sleep(0.002)
    assert process.returncode == 0
    return Reference(out, tree(out), write_s, time.monotonic() - begun)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a tmpfs of a size (or remount it); skips where mounting is not permitted."""
    mounted: list[Path] = []

    def make(size: int, folder: Path | None = None, *, read_only: bool = False) -> Path:
        again = folder is not None
        folder = folder or tmp_path / f"disk{len(mounted)}"
        folder.mkdir(exist_ok=True)
        options = f"{'remount,' if again else ''}size={size},{'ro' if read_only else 'rw'}"
        program = shutil.which("mount")
        if os.geteuid() != 0 or program is None:
            pytest.skip("mounting a tmpfs needs root")
        done = subprocess.run([program, "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        if not again:
            mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)
