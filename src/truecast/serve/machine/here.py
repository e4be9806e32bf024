"""The machine on which this runs."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from truecast.serve.machine import disk, gpus, network, node
from truecast.serve.machine.facts import Clock, FileSystem, GpuState, Hca, Interface, Limits, ReadRate

_VERBS = Path("/dev/infiniband")


@cache
def _gpus() -> list[GpuState] | None:
    return gpus.gpus()


class ThisMachine:
    """A :class:`~truecast.serve.machine.facts.Machine`, read from the kernel and from nvidia-smi when asked."""

    def interfaces(self) -> Sequence[Interface]:
        """See :func:`truecast.serve.machine.network.interfaces`."""
        return network.interfaces()

    def resolve(self, host: str) -> str | None:
        """See :func:`truecast.serve.machine.network.resolve`."""
        return network.resolve(host)

    def source_address(self, host: str) -> str | None:
        """See :func:`truecast.serve.machine.network.source_address`."""
        return network.source_address(host)

    def owns(self, address: str) -> bool:
        """See :func:`truecast.serve.machine.network.owns`."""
        return network.owns(address)

    def host_address(self) -> str | None:
        """By the machine's name."""
        return network.resolve(socket.gethostname())

    def adapters(self) -> Sequence[Hca]:
        """See :func:`truecast.serve.machine.network.adapters`."""
        return network.adapters()

    def verbs(self) -> bool:
        """Is there a device file for any adapter?"""
        return any(_VERBS.glob("uverbs*"))

    def limits(self) -> Limits:
        """See :func:`truecast.serve.machine.node.limits`."""
        return node.limits()

    def memory(self) -> int | None:
        """See :func:`truecast.serve.machine.node.memory`."""
        return node.memory()

    def file_system(self, path: Path) -> FileSystem | None:
        """See :func:`truecast.serve.machine.disk.file_system`."""
        return disk.file_system(path)

    def read_rate(self, files: Sequence[Path]) -> ReadRate | None:
        """See :func:`truecast.serve.machine.disk.read_rate`."""
        return disk.read_rate(files)

    def cached(self, files: Sequence[Path]) -> float | None:
        """See :func:`truecast.serve.machine.disk.cached`."""
        return disk.cached(files)

    def clock(self) -> Clock | None:
        """See :func:`truecast.serve.machine.node.clock`."""
        return node.clock()

    def governors(self) -> Sequence[str]:
        """See :func:`truecast.serve.machine.node.governors`."""
        return node.governors()

    def gpus(self) -> Sequence[GpuState] | None:
        """See :func:`truecast.serve.machine.gpus.gpus`; asked once."""
        return _gpus()
