"""Limits, memory, clock and CPU of this machine, from the kernel."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from truecast.serve.machine.facts import Clock, Limits

_GROUP = Path("/sys/fs/cgroup/memory.max")
_CPUS = Path("/sys/devices/system/cpu")
_UNSYNCHRONISED, _TIME_ERROR = 0x40, 5  # STA_UNSYNC and TIME_ERROR of linux/timex.h
_IPC_LOCK = 14  # CAP_IPC_LOCK of linux/capability.h


class _Timex(ctypes.Structure):
    """Head of ``struct timex`` as adjtimex(2) gives it; the rest is not read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def limits() -> Limits:
    """Of this process, which a server started from here inherits."""

    def pair(which: int) -> tuple[int | None, int | None]:
        soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
        return soft, hard

    return Limits(pair(resource.RLIMIT_NOFILE), pair(resource.RLIMIT_MEMLOCK), _may_lock())


def _may_lock() -> bool:
    try:
        lines = dict(line.partition(":\t")[::2] for line in Path("/proc/self/status").read_text().splitlines())
        return bool(int(lines["CapEff"], 16) >> _IPC_LOCK & 1)
    except (OSError, KeyError, ValueError):
        return False


def memory() -> int | None:
    """Physical memory in bytes, or the limit of the control group where that is lower."""
    try:
        own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
    try:
        return min(own, int(_GROUP.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return own


def clock() -> Clock | None:
    """As adjtimex(2) says it, which asks for nothing to be changed; None where it cannot be asked."""
    state = _Timex()
    try:
        result = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError):
        return None
    if result < 0:
        return None
    return Clock(result != _TIME_ERROR and not state.status & _UNSYNCHRONISED, state.maxerror / 1e6)


def governors() -> list[str]:
    """Frequency governors, each once; none where the kernel does not let frequencies be set."""
    found = set()
    for path in _CPUS.glob("cpu*/cpufreq/scaling_governor"):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue
    return sorted(found)
