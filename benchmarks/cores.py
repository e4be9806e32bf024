"""Which cores a client and a server get, so that a benchmark of the one does not measure the other."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def split_cores(usable: Collection[int], client: int) -> tuple[set[int], set[int]]:
    """CPUs of so many cores for the client, one thread of each, and for the server CPUs of other cores.

    Both get all of them where there are no more cores than the client's.
    """
    cores: dict[frozenset[int], list[int]] = {}
    for cpu in sorted(usable):
        cores.setdefault(siblings(cpu), []).append(cpu)
    if len(cores) <= client:
        return set(usable), set(usable)
    first = list(cores)[:client]
    return {cores[core][0] for core in first}, {cpu for core in cores if core not in first for cpu in cores[core]}


def siblings(cpu: int) -> frozenset[int]:
    """CPUs that are threads of the same core; this one alone where the system does not tell."""
    try:
        text = (TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return frozenset({cpu})
    found = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return frozenset(found)


def described(usable: Collection[int], client: int) -> str:
    """One line on who runs where."""
    mine, servers = split_cores(usable, client)
    if mine == servers:
        return f"client and server share {len(mine)} CPUs"
    return f"client (bench and AIPerf, every process) on CPUs {_list(mine)}; server on CPUs {_list(servers)}"


def _list(cpus: Collection[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


@contextmanager
def confine(cpus: Collection[int]) -> Iterator[None]:
    """Context in which this process, and what it starts, runs on these CPUs only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
