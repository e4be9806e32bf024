"""Facts of the machine that serves: its network, limits, disks, clock and GPUs."""

from __future__ import annotations

from truecast.serve.machine.facts import (
    Clock,
    FileSystem,
    GpuState,
    Hca,
    Interface,
    Limits,
    Machine,
    ReadRate,
)
from truecast.serve.machine.here import ThisMachine

__all__ = [
    "Clock",
    "FileSystem",
    "GpuState",
    "Hca",
    "Interface",
    "Limits",
    "Machine",
    "ReadRate",
    "ThisMachine",
]
