"""One thread that generates for all requests in turn: each gets one step, then the next one has its turn."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from truecast.errors import InputError
from truecast.models.sampling import Sampler, Scored, scored

PREFILL_TOKENS = 128
"""A prompt is read this much a turn, so that a long one does not hold up the others."""
MAX_ACTIVE = 16
"""Sequences with caches in memory; further ones wait, first come first served."""

log = logging.getLogger(__name__)


class Session(Protocol):
    """One sequence with its caches."""

    def extend(self, tokens: list[int]) -> Tensor:
        """Go on by these tokens. Returns logits ``[V]`` after the last."""

    def logits_all(self, tokens: list[int]) -> Tensor:
        """Go on by these tokens. Returns logits ``[T, V]`` after each."""


@dataclass(frozen=True, slots=True)
class Finished:
    """No token follows. ``stop``: the model ended its text; ``length``: ``max_tokens`` are reached."""

    reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Failed:
    """The sequence could not go on."""

    message: str


Item = Scored | Finished | Failed


class Job:
    """One sequence to generate.

    ``emit`` is called from the engine's thread: with the prompt's tokens if ``echo``, each new token, then one
    ``Finished`` or ``Failed``; not once after ``cancel``. ``top``: how many alternatives to give with each token.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        emit: Callable[[Item], None],
        *,
        max_tokens: int,
        sampler: Sampler,
        stops: frozenset[int] = frozenset(),
        top: int = 0,
        echo: bool = False,
    ) -> None:
        self.prompt = prompt  # shared by the sequences of a request, not copied for each
        self.max_tokens = max_tokens
        self.sampler = sampler
        self.stops = stops
        self.top = top
        self.echo = echo
        self.cancelled = False
        self._emit = emit
        self._session: Session | None = None
        self._read = 0
        self._made = 0
        self._logits: Tensor | None = None

    def cancel(self) -> None:
        """Stop before the next token. May be called from any thread, and again."""
        self.cancelled = True

    def emit(self, item: Item) -> None:
        """Hand over an item, unless nobody waits any more."""
        if not self.cancelled:
            self._emit(item)

    def step(self, new_session: Callable[[], Session]) -> bool:
        """Read some of the prompt, or make one token. Returns whether there is more to do."""
        if self._session is None:
            self._session = new_session()
        if self._read < len(self.prompt):
            self._prefill(self._session)
            return self._read < len(self.prompt) or self._more()
        assert self._logits is not None
        token = self.sampler.pick(self._logits)
        self.emit(scored(self._logits, token, self.top))
        self._made += 1
        if token in self.stops:
            self.emit(Finished("stop"))
            return False
        if not self._more():
            return False
        self._logits = self._session.extend([token])
        return True

    def _more(self) -> bool:
        if self._made < self.max_tokens:
            return True
        self.emit(Finished("length"))
        return False

    def _prefill(self, session: Session) -> None:
        part = list(self.prompt[self._read : self._read + PREFILL_TOKENS])
        if not self.echo:
            self._logits = session.extend(part)
        else:
            every = session.logits_all(part)
            before = self._logits
            for row, token in enumerate(part):
                self.emit(Scored(token, None) if before is None else scored(before, token, self.top))
                before = every[row]
            self._logits = before
        self._read += len(part)


class Engine:
    """Generates for all jobs on one thread of its own, step by step in turn. ``close`` ends it."""

    def __init__(self, new_session: Callable[[], Session]) -> None:
        self._new_session = new_session
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._active: deque[Job] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="generate", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Take a job on."""
        with self._changed:
            if self._closed:
                job.emit(Failed("the server is shutting down"))
                return
            self._waiting.append(job)
            self._changed.notify()

    def load(self) -> tuple[int, int]:
        """How many jobs are being worked on, and how many wait."""
        with self._changed:
            return len(self._active), len(self._waiting)

    def close(self) -> None:
        """Fail what is unfinished and end the thread. Returns once it has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                more = job.step(self._new_session)
            except InputError as error:
                job.emit(Failed(str(error)))
                more = False
            except Exception as error:  # one request must not end the server
                log.warning("a request failed: %s", error, exc_info=True)
                job.emit(Failed(f"{type(error).__name__}: {error}"))
                more = False
            with self._changed:
                self._active.popleft()
                if more:
                    self._active.append(job)

    def _next(self) -> Job | None:
        """The job whose turn it is, at the head of the active ones; None when closed."""
        with self._changed:
            while True:
                if self._closed:
                    for job in (*self._active, *self._waiting):
                        job.emit(Failed("the server is shutting down"))
                    self._active.clear()
                    self._waiting.clear()
                    return None
                self._drop_cancelled()
                while self._waiting and len(self._active) < MAX_ACTIVE:
                    self._active.append(self._waiting.popleft())
                if self._active:
                    return self._active[0]
                self._changed.wait()

    def _drop_cancelled(self) -> None:
        for queue in (self._active, self._waiting):
            for job in [j for j in queue if j.cancelled]:
                queue.remove(job)
