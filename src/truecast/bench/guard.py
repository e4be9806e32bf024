"""Nothing that a load test started outlives it, be it ended by Ctrl-C or killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_WATCH = 'read -r group || exit; read -r done && exit; kill -s KILL -- "-$group"; sleep 1; rm -rf -- "$1"'
"""Told the group of processes on one line and that all is done on another. A pipe that ends before means: killed."""


@contextmanager
def guarded(folder: Path) -> Iterator[Callable[[int], None]]:
    """Context in which a shell waits for the death of this process, to kill a group of processes and remove ``folder``.

    Yields a function that is given the id of the group.
    """
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    pipe = shell.stdin
    assert pipe is not None

    def tell(line: str) -> None:
        with suppress(BrokenPipeError):  # somebody killed the shell
            pipe.write(f"{line}\n".encode())
            pipe.flush()

    try:
        yield lambda group: tell(str(group))
    finally:
        tell("done")
        with suppress(BrokenPipeError):
            pipe.close()
        shell.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its group at once; what they hold is of no more use."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
