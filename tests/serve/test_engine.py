"""The order of work, without a network."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest

from tests.serve.serving import END, Scripted
from truecast.models.sampling import Sampler, Scored
from truecast.serve.reference.engine import MAX_ACTIVE, PREFILL_TOKENS, Engine, Failed, Finished, Item, Job


class Log:
    """Items of several jobs in the order they came."""

    def __init__(self) -> None:
        self.items: list[tuple[str, Item]] = []
        self._ended = threading.Semaphore(0)

    def job(self, name: str, prompt: list[int], max_tokens: int, **more: Any) -> Job:
        def emit(item: Item) -> None:
            self.items.append((name, item))
            if not isinstance(item, Scored):
                self._ended.release()

        return Job(prompt, emit, max_tokens=max_tokens, sampler=Sampler(0), **more)

    def wait(self, jobs: int) -> None:
        assert all(self._ended.acquire(timeout=30) for _ in range(jobs))

    def of(self, name: str) -> list[Item]:
        return [item for owner, item in self.items if owner == name]


@pytest.fixture
def log() -> Log:
    return Log()


def test_jobs_take_turns(log: Log) -> None:
    engine = Engine(lambda: Scripted([1, 2, 3], delay_s=0.002))
    for name in "ab":
        engine.submit(log.job(name, [5], 50))
    log.wait(2)
    engine.close()
    turns = [name for name, item in log.items if isinstance(item, Scored)]
    assert turns.count("a") == turns.count("b") == 50
    middle = turns[5:-5]
    assert all(x != y for x, y in itertools.pairwise(middle))


def test_a_long_prompt_does_not_hold_up_a_short_one(log: Log) -> None:
    engine = Engine(lambda: Scripted([1], delay_s=0.005))
    engine.submit(log.job("long", [5] * PREFILL_TOKENS * 40, 1))
    engine.submit(log.job("short", [5], 5))
    log.wait(2)
    engine.close()
    ends = [name for name, item in log.items if isinstance(item, Finished)]
    assert ends == ["short", "long"]


def test_stop_and_length(log: Log) -> None:
    engine = Engine(lambda: Scripted([1, END, 2]))
    engine.submit(log.job("stops", [5], 9, stops=frozenset({END})))
    engine.submit(log.job("goes on", [5], 3))
    engine.submit(log.job("none", [5], 0))
    log.wait(3)
    engine.close()
    assert [i.token if isinstance(i, Scored) else i for i in log.of("stops")] == [1, END, Finished("stop")]
    assert [i.token if isinstance(i, Scored) else i for i in log.of("goes on")] == [1, END, 2, Finished("length")]
    assert log.of("none") == [Finished("length")]


def test_no_more_sequences_at_once_than_there_are_places(log: Log) -> None:
    sessions: list[Scripted] = []

    def new_session() -> Scripted:
        sessions.append(Scripted([1], delay_s=0.01))
        return sessions[-1]

    engine = Engine(new_session)
    jobs = [log.job(str(i), [5], 1000) for i in range(MAX_ACTIVE + 5)]
    for job in jobs:
        engine.submit(job)
    while engine.load() != (MAX_ACTIVE, 5) or len(sessions) < MAX_ACTIVE:
        time.sleep(0.001)
    assert len(sessions) == MAX_ACTIVE
    for job in jobs[:5]:
        job.cancel()
    while engine.load() != (MAX_ACTIVE, 0):
        time.sleep(0.001)
    engine.close()
    assert {item for name, item in log.items if name in set("01234") and not isinstance(item, Scored)} == set()


def test_closing_fails_what_is_left_and_what_comes_after(log: Log) -> None:
    engine = Engine(lambda: Scripted([1], delay_s=0.01))
    engine.submit(log.job("running", [5], 1000))
    while not log.items:
        time.sleep(0.001)
    engine.close()
    engine.submit(log.job("late", [5], 1))
    log.wait(2)
    assert all(isinstance(log.of(name)[-1], Failed) for name in ("running", "late"))


def test_a_failing_model_fails_its_job_only(log: Log) -> None:
    engine = Engine(lambda: Scripted([1]))
    engine.submit(log.job("scored", [5], 1, echo=True))
    engine.submit(log.job("fine", [5], 1))
    log.wait(2)
    engine.close()
    assert log.of("scored") == [Failed("RuntimeError: this model cannot score")]
    assert log.of("fine")[-1] == Finished("length")
