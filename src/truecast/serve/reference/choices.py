"""Several sequences at once, from the engine's thread into the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, TypeVar

from truecast.models.sampling import Sampler, Scored
from truecast.serve.reference.engine import Engine, Failed, Finished, Item, Job
from truecast.serve.reference.errors import ApiError


class Choices(AbstractContextManager["Choices"]):
    """The jobs of one request. Leaving the context cancels what is unfinished.

    ``make`` is given the number of a sequence and the function to hand its items to.
    Iterating gives ``(number, item)`` until all have finished. Raises: ApiError 500 where one fails.
    """

    def __init__(self, engine: Engine, count: int, make: Callable[[int, Callable[[Item], None]], Job]) -> None:
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Item]]()

        def hand_to(number: int) -> Callable[[Item], None]:
            def hand(item: Item) -> None:
                loop.call_soon_threadsafe(queue.put_nowait, (number, item))

            return hand

        self._queue = queue
        self._jobs = [make(number, hand_to(number)) for number in range(count)]
        self._open = set(range(count))
        for job in self._jobs:
            engine.submit(job)

    def end(self, number: int) -> None:
        """This sequence has come to an end of its own (a stop string)."""
        self._jobs[number].cancel()
        self._open.discard(number)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Scored | Finished]]:
        while self._open:
            number, item = await self._queue.get()
            if number not in self._open:
                continue  # made before it was cancelled
            if isinstance(item, Failed):
                raise ApiError(500, item.message)
            if isinstance(item, Finished):
                self._open.discard(number)
            yield number, item

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self._jobs:
            job.cancel()


class Piece(Protocol):
    """What one item of a sequence gives."""

    end: str | None
    """Why the sequence ends with it, if it does."""


SomePiece = TypeVar("SomePiece", bound=Piece, covariant=True)


class Reader(Protocol[SomePiece]):
    """What makes pieces of the items of one sequence."""

    def take(self, item: Scored | Finished) -> SomePiece:
        """What this item gives."""


async def pieces(
    engine: Engine, readers: Sequence[Reader[SomePiece]], make: Callable[[int, Callable[[Item], None]], Job]
) -> AsyncIterator[tuple[int, SomePiece]]:
    """Number and piece of each item of the sequences, one for each reader, until all have ended. See :class:`Choices`."""
    with Choices(engine, len(readers), make) as choices:
        async for number, item in choices:
            piece = readers[number].take(item)
            if piece.end is not None:
                choices.end(number)
            yield number, piece


def sampler(temperature: float | None, top_p: float | None, seed: int | None, number: int) -> Sampler:
    """The sampler of the ``number``-th sequence of a request."""
    return Sampler(1.0 if temperature is None else temperature, 1.0 if top_p is None else top_p, seed, number)


def spelled(data: bytes) -> str:
    """A token's bytes as text; where they are none by themselves, ``bytes:`` and each in hexadecimal."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in data)


def tokens_of(items: Sequence[Scored]) -> list[int]:
    """Their ids."""
    return [item.token for item in items]
