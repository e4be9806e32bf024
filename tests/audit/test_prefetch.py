from __future__ import annotations

import threading

import pytest

from truecast.audit.prefetch import prefetched

SOON = 20.0
"""Seconds that are never reached unless the test fails."""


def test_the_next_is_read_while_the_caller_works() -> None:
    begun = [threading.Event() for _ in range(4)]

    def load(index: int) -> int:
        begun[index].set()
        return index

    for index in prefetched(load, 0, 4, ahead=True):
        if index < 3:
            assert begun[index + 1].wait(SOON), f"{index + 1} is not read during the work on {index}"


def test_no_more_than_the_next_is_read() -> None:
    begun: list[int] = []
    for index in prefetched(lambda i: begun.append(i) or i, 2, 6, ahead=True):  # type: ignore[func-returns-value]
        assert max(begun) <= index + 1
    assert begun == [2, 3, 4, 5]


def test_without_room_nothing_is_read_ahead() -> None:
    begun: list[int] = []
    for index in prefetched(lambda i: begun.append(i) or i, 0, 3, ahead=False):  # type: ignore[func-returns-value]
        assert begun[-1] == index


@pytest.mark.parametrize("ahead", [False, True])
def test_a_fault_of_reading_reaches_the_caller(ahead: bool) -> None:
    def load(index: int) -> int:
        if index == 1:
            raise ValueError("layer 1")
        return index

    with pytest.raises(ValueError, match="layer 1"):
        list(prefetched(load, 0, 3, ahead))
