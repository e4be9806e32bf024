"""Several tasks at once, their results in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_order(work: Callable[[Task], Result], tasks: Sequence[Task], at_once: int) -> Iterator[Result]:
    """``work`` of each task, at most ``at_once`` at a time, in the order of the tasks.

    The first error ends it: what has begun goes on in the background, nothing new begins.
    """
    if at_once == 1:
        yield from map(work, tasks)
        return
    results = [Future[Result]() for _ in tasks]
    left = iter(zip(results, tasks, strict=True))
    turn, ended = threading.Lock(), threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            with turn:
                pair = next(left, None)
            if pair is None:
                return
            result, task = pair
            try:
                result.set_result(work(task))
            except Exception as error:
                result.set_exception(error)

    for _ in range(min(at_once, len(tasks))):  # daemons: Ctrl-C does not wait for a server
        threading.Thread(target=go_on, daemon=True).start()
    try:
        for result in results:
            yield result.result()
    finally:
        ended.set()
