"""Twelve requests at once, each with an identifier of its own: does it come back, and does anybody get another's?

Speculative decoding has corrupted identifiers at some depths (SGLang issues 33800, 34959, 32038), and requests have seen
text of others under load (36859).
"""

from __future__ import annotations

import random
import string
import threading
from collections.abc import Sequence

from truecast.serve.smoke.chat import EFFORT, QUESTION, Reply, ask
from truecast.serve.smoke.finding import Finding, failed, passed, quoted, warned
from truecast.serve.smoke.http import Server, ServerFault

CONCURRENCY = 12
OWN_SLIPS = 2
"""Identifiers that a small model may get wrong by itself."""
_GROUPS, _GROUP = 4, 4
_ALPHABET = string.ascii_lowercase + string.digits


def identifiers(seed: int | None) -> list[str]:
    """One for each request; random, so that nothing that was cached or learned can be the answer."""
    rng = random.Random(seed)

    def one() -> str:  # no character twice in a group: a small model drops one of a pair
        return "-".join("".join(rng.sample(_ALPHABET, _GROUP)) for _ in range(_GROUPS))

    return [one() for _ in range(CONCURRENCY)]


def burst(server: Server, names: Sequence[str]) -> tuple[list[Reply | ServerFault], Reply | ServerFault]:
    """All at once: one reply for each identifier, and one to the easy question among them."""

    replies: dict[int, Reply | ServerFault] = {}

    def one(number: int) -> None:
        replies[number] = echo(server, names[number]) if number < len(names) else _asked(server, QUESTION, EFFORT)

    # not a pool: that would wait for its threads after Ctrl-C
    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(names) + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [replies[i] for i in range(len(names))], replies[len(names)]


def echo(server: Server, name: str) -> Reply | ServerFault:
    """Ask for an identifier."""
    return _asked(server, f"Repeat exactly: {name}", "low")


def _asked(server: Server, user: str, effort: str) -> Reply | ServerFault:
    try:
        return ask(server, user, reasoning_effort=effort)
    except ServerFault as error:
        return error


def echoes(server: Server, names: Sequence[str], replies: Sequence[Reply | ServerFault]) -> Finding:
    """Every identifier came back as it was; one that did not is asked for again, alone.

    One that another request got is the other canary's. No more than :data:`OWN_SLIPS` that are wrong alone as well are
    put down to the model.
    """
    name, wrong = "identifiers", []
    for own, reply in zip(names, replies, strict=True):
        if isinstance(reply, ServerFault):
            wrong.append((own, str(reply), False))
        elif own not in reply.content and not _others(own, names, reply):
            again = echo(server, own) if len(wrong) <= OWN_SLIPS else reply
            alone = isinstance(again, Reply) and own not in again.content
            wrong.append((own, f"came back as {quoted(reply.content)}{', alone as well' if alone else ''}", alone))
    if not wrong:
        return passed(name, f"{len(names)} random identifiers came back at concurrency {len(names)}")
    seen = f"{len(wrong)} of {len(names)} at concurrency {len(names)}: "
    seen += "; ".join(f"{own} {how}" for own, how, _ in wrong[:3])
    if len(wrong) <= OWN_SLIPS and all(alone for *_, alone in wrong):
        return warned(name, seen, "wrong alone as well: a weak model, or speculative decoding; try without speculation")
    return failed(
        name, seen,
        "with speculative decoding: turn it off or lower its depth and try again; without it: look for this engine's"
        " issues on batches, graphs and the radix cache",
    )  # fmt: skip


def leaks(names: Sequence[str], replies: Sequence[Reply | ServerFault]) -> Finding:
    """No reply holds what only another request was told."""
    name, seen = "leaks", []
    for own, reply in zip(names, replies, strict=True):
        if isinstance(reply, Reply):
            seen += [f"the request with {own} got {other}" for other in _others(own, names, reply)]
    if seen:
        return failed(
            name,
            f"{len(seen)} at concurrency {len(names)}: {'; '.join(seen[:3])}",
            "take this server out at once: requests see each other's text. Try without speculative decoding, radix cache"
            " and prefill-decode disaggregation, one at a time",
        )
    return passed(name, f"none of {len(names)} requests at once saw another's identifier")


def _others(own: str, names: Sequence[str], reply: Reply) -> list[str]:
    text = reply.reasoning + reply.content + "".join(call.arguments for call in reply.calls)
    return [other for other in names if other != own and other in text]
