"""What is to be known of a machine that serves: its network, limits, disks, clock and GPUs. Sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. ``addresses`` with their prefix length, such as ``10.0.0.5/24``, IPv4 before IPv6."""

    name: str
    addresses: tuple[str, ...]
    up: bool = True
    virtual: bool = False
    """Loopback, a bridge or a container's pair: no hardware behind it."""


@dataclass(frozen=True, slots=True)
class Hca:
    """One port of an RDMA adapter. ``gids``: index -> (address, kind such as ``RoCE v2``), empty entries left out."""

    device: str
    port: int
    active: bool
    link: str
    """``InfiniBand`` or ``Ethernet``."""
    gids: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of this process, ``(soft, hard)``; None is unlimited. ``locked`` in bytes.

    ``may_lock``: the capability CAP_IPC_LOCK, to which the limit of locked memory does not apply.
    """

    files: tuple[int | None, int | None]
    locked: tuple[int | None, int | None]
    may_lock: bool = False


@dataclass(frozen=True, slots=True)
class FileSystem:
    """The file system that holds a path: its kind as the kernel names it, and where it is mounted."""

    kind: str
    mount: str
    size: int
    free: int

    @property
    def in_memory(self) -> bool:
        """Is what is stored there taken from the machine's memory?"""
        return self.kind in ("tmpfs", "ramfs")

    @property
    def over_network(self) -> bool:
        """Does it lie on another machine?"""
        return self.kind in _NETWORK or (self.kind.startswith("fuse") and "overlay" not in self.kind)


_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "glusterfs",
        "9p",
        "wekafs",
        "virtiofs",
        "orangefs",
    }
)


@dataclass(frozen=True, slots=True)
class ReadRate:
    """A reading of files past the page cache. ``how`` says what it did."""

    bytes: int
    seconds: float
    how: str

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds


@dataclass(frozen=True, slots=True)
class Clock:
    """``synchronised``: does the kernel say so? ``error``: largest error in seconds, as the kernel estimates it."""

    synchronised: bool
    error: float


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU as its driver reports it now; None where the driver reports nothing. Power in watts."""

    index: int
    name: str
    driver: str
    capability: int | None
    memory: int
    used: int
    processes: tuple[tuple[int, int], ...] = ()
    """``(pid, bytes)`` of every compute process that the driver shows."""
    ecc: bool | None = None
    ecc_errors: int | None = None
    """Uncorrected ones since the driver was loaded."""
    persistent: bool | None = None
    mig: bool | None = None
    power_limit: float | None = None
    power_default: float | None = None


class Machine(Protocol):
    """Facts of one machine. Those that cannot be had are None, and an empty sequence says that there are none."""

    def interfaces(self) -> Sequence[Interface]:
        """All network interfaces."""

    def resolve(self, host: str) -> str | None:
        """The first address of a name; an address is its own."""

    def source_address(self, host: str) -> str | None:
        """The own address from which packets to ``host`` leave by the routing table; nothing is sent."""

    def owns(self, address: str) -> bool:
        """Is that an address of this machine?"""

    def host_address(self) -> str | None:
        """What the machine's own name resolves to."""

    def adapters(self) -> Sequence[Hca]:
        """Ports of RDMA adapters, in the order of their names."""

    def verbs(self) -> bool:
        """Are RDMA devices open to programs here (``/dev/infiniband/uverbs*``)? In a container they often are not."""

    def limits(self) -> Limits:
        """Resource limits that a server started from here inherits."""

    def memory(self) -> int | None:
        """Physical memory, or what the container may use of it."""

    def file_system(self, path: Path) -> FileSystem | None:
        """Where a path lies (or, where it does not exist yet, the nearest folder above it that does)."""

    def read_rate(self, files: Sequence[Path]) -> ReadRate | None:
        """How fast these files are read from where they lie, not from memory; None where that cannot be told."""

    def cached(self, files: Sequence[Path]) -> float | None:
        """Share of these files that lies in memory already, 0 to 1; None where that cannot be told."""

    def clock(self) -> Clock | None:
        """Is the clock kept in step with others?"""

    def governors(self) -> Sequence[str]:
        """Frequency governors in use by the CPUs, each once."""

    def gpus(self) -> Sequence[GpuState] | None:
        """GPUs of this machine; None without NVIDIA's driver."""
