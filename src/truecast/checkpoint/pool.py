"""Running jobs in worker processes that die with their parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from truecast.errors import WorkerLostError

Job = TypeVar("Job")
Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1


def run_jobs(
    work: Callable[[Job], Result], jobs: Sequence[Job], processes: int
) -> Generator[tuple[Result, Job], None, None]:
    """Yield ``(result, job)`` as jobs finish, in no fixed order; inline where one process is enough.

    The first error ends the run, and so does closing the generator: jobs not yet begun are dropped, those at work are
    stopped. Close it (``contextlib.closing``) where the loop over it may raise.
    Raises: whatever ``work`` raises; WorkerLostError if a worker was killed.
    """
    if processes <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield work(job), job
        return
    context = multiprocessing.get_context("spawn")  # fork copies locks held by other threads
    pool = ProcessPoolExecutor(min(processes, len(jobs)), context, initializer=_follow_parent, initargs=(os.getpid(),))
    try:
        with _interrupts_held():
            futures = {pool.submit(work, job): job for job in jobs}
        for future in as_completed(futures):
            yield future.result(), futures[future]
    except BrokenProcessPool:
        raise WorkerLostError(
            "a worker process was killed, most likely for memory", fix="run the same command again, with fewer --jobs"
        ) from None
    finally:
        workers = list((pool._processes or {}).values())
        manager: threading.Thread | None = getattr(pool, "_executor_manager_thread", None)
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        if manager is not None:
            manager.join()  # else Python's exit may write to the pipe that it is just closing, and print a traceback


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while workers start: neither may they see it before they can ignore it, nor be left half born.

    Workers inherit the mask. In this process the signal may reach a thread of some library that does not have it, and
    is then noted by a handler.
    """
    held: list[tuple[int, FrameType | None]] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    if handler is not None:
        signal.signal(signal.SIGINT, lambda *event: held.append(event))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
    if held and callable(handler):
        handler(*held[0])


def _follow_parent(parent: int) -> None:
    """Leave Ctrl-C to the parent, and ask Linux to kill this worker when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
