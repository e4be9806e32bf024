"""Submitting the job of a launch to Slurm, and following it until its replicas answer."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from truecast.errors import UsageError
from truecast.serve.launch.slurm import READY

POLL_S = 1.0
LAST_LINES = 20
_GOING_ON = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STOPPED"}


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job left the queue before its replicas answered."""

    job: str
    state: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        last = "\n  ".join(self.lines) or "(none)"
        return f"job {self.job} is {self.state or 'gone'}; last lines of its logs:\n  {last}"


def submit(folder: Path) -> str:
    """``sbatch job.slurm`` in its folder. Returns the job's number. Raises: UsageError with what sbatch said."""
    done = _slurm(["sbatch", "--parsable", "job.slurm"], folder)
    if done.returncode:
        raise UsageError(f"sbatch refused: {' '.join(done.stderr.split())}", where=str(folder / "job.slurm"))
    return done.stdout.strip().partition(";")[0]


def follow(folder: Path, job: str, replicas: int, log: Callable[[str], None]) -> list[str] | JobEnded:
    """Pass on the job's log until each replica answers. Returns their URLs, or how the job ended before."""
    urls: dict[str, None] = {}
    lines = _lines(folder / f"truecast-{job}.log")
    while True:
        state = _state(folder, job)  # before the log: what it said at its end is read then
        for line in lines:
            if line is None:
                break
            log(line)
            if line.startswith(READY):
                urls[line.removeprefix(READY).strip()] = None
        if len(urls) == replicas:
            return list(urls)
        if state not in _GOING_ON:
            return JobEnded(job, state, _last_lines(folder, job))
        time.sleep(POLL_S)


def _state(folder: Path, job: str) -> str:
    """Such as ``RUNNING``; empty where Slurm has forgotten the job."""
    done = _slurm(["scontrol", "--oneliner", "show", "job", job], folder)
    fields = dict(word.partition("=")[::2] for word in done.stdout.split() if "=" in word)
    return fields.get("JobState", "")


def _slurm(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError(f"there is no {command[0]} here", fix="run this on a machine that submits to Slurm") from None


def _lines(path: Path) -> Iterator[str | None]:
    """Complete lines as they come; None where there is no further one yet."""
    offset = 0
    rest = b""
    while True:
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            offset += len(data)
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
        yield None


def _last_lines(folder: Path, job: str) -> tuple[str, ...]:
    found: list[str] = []
    for path in sorted(folder.glob(f"truecast-{job}*.log")):
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        found += [f"{path.name}: {line}" for line in text]
    return tuple(found)
