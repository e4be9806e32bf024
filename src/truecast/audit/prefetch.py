"""Reading the next layer while the present one computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(load: Callable[[int], T], start: int, end: int, ahead: bool) -> Iterator[T]:
    """``load(i)`` for each i in turn. With ``ahead`` one thread loads i + 1 while the caller works on i.

    At most two results exist at a time (one without ``ahead``) if the caller lets go of each before asking for the
    next. Raises what ``load`` raises.
    """
    if not ahead:
        for index in range(start, end):
            yield load(index)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as pool:
        coming: list[Future[T]] = [pool.submit(load, start)] if start < end else []
        for index in range(start, end):
            now = [coming.pop().result()]
            if index + 1 < end:
                coming.append(pool.submit(load, index + 1))
            yield now.pop()
