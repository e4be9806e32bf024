"""A machine as a test wants it: one healthy node of a cluster unless said otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from truecast.serve.doctor.finding import Check, Status, Verdict
from truecast.serve.doctor.ground import Ground
from truecast.serve.machine import Clock, FileSystem, GpuState, Hca, Interface, Limits, Machine, ReadRate

GIB = 1 << 30
HEAD = "10.0.0.1"
LOOPBACK = Interface("lo", ("127.0.0.1/8", "::1/128"), virtual=True)
FABRIC = Interface("eth1", ("10.0.0.5/24", "fe80::5/64"))
OFFICE = Interface("eth0", ("192.168.1.5/24",))
DOCKER = Interface("docker0", ("172.17.0.1/16",), virtual=True)
DISK = FileSystem("ext4", "/", 4000 * GIB, 2000 * GIB)
MEMORY = FileSystem("tmpfs", "/dev/shm", 64 * GIB, 64 * GIB)
H200 = GpuState(
    0, "NVIDIA H200", "580.65.06", 90, 143_771 << 20, 1 << 20, persistent=True, mig=False, ecc=True, ecc_errors=0
)


def adapter(device: str = "mlx5_0", link: str = "InfiniBand", *, active: bool = True) -> Hca:
    gids = ((0, "fe80::5", "IB/RoCE v1"), (1, "fe80::5", "RoCE v2"), (3, "::ffff:10.0.0.5", "RoCE v2"))
    return Hca(device, 1, active, link, gids if link == "Ethernet" else ())


@dataclass(frozen=True)
class MadeMachine:
    """``routes``: where packets to an address leave, ``""`` for every other one. ``names``: what resolves."""

    links: Sequence[Interface] = (LOOPBACK, FABRIC, OFFICE)
    routes: Mapping[str, str] = field(default_factory=lambda: {HEAD: "10.0.0.5", "8.8.8.8": "192.168.1.5"})
    names: Mapping[str, str] = field(default_factory=dict)
    named: str | None = "10.0.0.5"
    hcas: Sequence[Hca] = (adapter(),)
    open_verbs: bool = True
    limit: Limits = field(default_factory=lambda: Limits((1024, 1 << 20), (None, None)))
    ram: int | None = 2000 * GIB
    disks: Mapping[str, FileSystem] = field(default_factory=lambda: {"/": DISK, "/dev/shm": MEMORY})
    rate: ReadRate | None = None
    in_cache: float | None = None
    time: Clock | None = field(default_factory=lambda: Clock(True, 0.001))
    governed: Sequence[str] = ("performance",)
    devices: Sequence[GpuState] | None = None

    def interfaces(self) -> Sequence[Interface]:
        return self.links

    def resolve(self, host: str) -> str | None:
        return self.names.get(host, host if host[:1].isdigit() or ":" in host else None)

    def source_address(self, host: str) -> str | None:
        return self.routes.get(host, self.routes.get(""))

    def owns(self, address: str) -> bool:
        return any(address == a.partition("/")[0] for i in self.links for a in i.addresses)

    def host_address(self) -> str | None:
        return self.named

    def adapters(self) -> Sequence[Hca]:
        return self.hcas

    def verbs(self) -> bool:
        return self.open_verbs

    def limits(self) -> Limits:
        return self.limit

    def memory(self) -> int | None:
        return self.ram

    def file_system(self, path: Path) -> FileSystem | None:
        return max(((m, f) for m, f in self.disks.items() if path.is_relative_to(m)), key=lambda item: len(item[0]))[1]

    def read_rate(self, files: Sequence[Path]) -> ReadRate | None:
        return self.rate

    def cached(self, files: Sequence[Path]) -> float | None:
        return self.in_cache

    def clock(self) -> Clock | None:
        return self.time

    def governors(self) -> Sequence[str]:
        return self.governed

    def gpus(self) -> Sequence[GpuState] | None:
        return self.devices


_IS_A_MACHINE: Machine = MadeMachine()

TWO_NODES = {"--nnodes": "2", "--dist-init-addr": f"{HEAD}:20000", "--tp-size": "16", "--ep-size": "16"}


def check_of(checks: Sequence[Check], id: str) -> Callable[[Ground], Verdict]:
    """The one check of that id, which must give one verdict."""
    (found,) = (check for check in checks if check.id == id)

    def run(ground: Ground) -> Verdict:
        verdict = found.run(ground)
        assert isinstance(verdict, Verdict)
        if verdict.status in (Status.WARN, Status.FAIL, Status.UNKNOWN):
            assert verdict.remedy
        return verdict

    return run
