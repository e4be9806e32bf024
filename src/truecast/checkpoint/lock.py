"""One run at a time: the lock of an output folder, which goes with the process that holds it."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from truecast.checkpoint.writer import explained
from truecast.errors import RefusedError

log = logging.getLogger(__name__)


def lock_folder(out: Path, own: Path, run: str) -> int:
    """Make ``own``, a run's folder inside ``out``, and lock it. Returns the descriptor; closing it is letting go.

    Raises: RefusedError if another ``run`` (what it calls itself) is at work there.
    """
    path = own / "lock"
    while True:
        with explained(out):
            own.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RefusedError(
                f"another {run} is writing this folder", where=str(out), fix="wait for it to end"
            ) from None
        except OSError as error:  # some network file systems have no locks
            log.warning("%s cannot be locked (%s): make sure that only one %s writes it", out, error.strerror, run)
        if path.exists() and path.stat().st_ino == os.fstat(lock).st_ino:
            return lock
        os.close(lock)  # a run that wrote nothing removed it meanwhile, and its lock with it
