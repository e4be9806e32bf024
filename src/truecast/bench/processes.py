"""AIPerf's processes, as Linux shows them: which sends the requests, which only writes down, what CPU they get."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LATER = 15
"""Niceness of what can wait."""
_SENDS, _RECORDS = re.compile(r"aiperf worker_(?!manager)"), re.compile(r"aiperf records?_")
"""Titles that AIPerf gives its processes."""


def members(session: int) -> Iterator[tuple[int, str]]:
    """Process id and title of each process of a session; nothing where there is no /proc."""
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        with suppress(OSError):  # it has just ended
            if os.getsid(pid) == session:  # a look into its files would cost too much where there are thousands
                yield pid, (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_seconds(session: int) -> dict[int, tuple[float, float]]:
    """Seconds of CPU, used and waited for, by each process that sends requests."""
    seconds: dict[int, tuple[float, float]] = {}
    for pid, title in members(session):
        if _SENDS.match(title):
            with suppress(OSError, ValueError):
                used, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
                seconds[pid] = int(used) / 1e9, int(waited) / 1e9
    return seconds


def let_records_wait(session: int) -> None:
    """Give the processes that only write records down what CPU the sending ones leave."""
    for pid, title in members(session):
        if _RECORDS.match(title):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, LATER)
