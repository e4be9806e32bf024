"""Interfaces, routes and RDMA adapters of this machine, from the kernel. Nothing is sent."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from truecast.serve.machine.facts import Hca, Interface

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B  # linux/sockios.h
_IF_UP = 0x1  # linux/if.h
_TABLE_V6 = Path("/proc/net/if_inet6")
_CLASS = Path("/sys/class/net")
_RDMA = Path("/sys/class/infiniband")
_NOTHING = ipaddress.ip_address("::")


def interfaces() -> list[Interface]:
    """All of them, by the kernel's order. IPv4: the first address of each; IPv6: every one."""
    return [_interface(name) for _, name in socket.if_nameindex()]


def _interface(name: str) -> Interface:
    folder = _CLASS / name
    four = _ipv4(name)
    addresses = (*([four] if four else []), *_ipv6().get(name, []))
    return Interface(name, addresses, bool(int(_text(folder / "flags") or "0x1", 16) & _IF_UP), _virtual(folder))


def _virtual(folder: Path) -> bool:
    try:
        return "/devices/virtual/" in str(folder.resolve(strict=True))
    except OSError:
        return False


def _ipv4(name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        try:
            address, mask = (
                socket.inet_ntoa(fcntl.ioctl(own.fileno(), code, request)[20:24])
                for code in (_SIOCGIFADDR, _SIOCGIFNETMASK)
            )
        except OSError:
            return None
    return str(ipaddress.ip_interface(f"{address}/{mask}"))


def _ipv6() -> dict[str, list[str]]:
    """Columns of the kernel's table: address, index, prefix length, scope, flags, name."""
    found: dict[str, list[str]] = {}
    for line in (_text(_TABLE_V6) or "").splitlines():
        digits, _, prefix, _, _, name = line.split()
        found.setdefault(name, []).append(f"{ipaddress.IPv6Address(int(digits, 16))}/{int(prefix, 16)}")
    return found


def resolve(host: str) -> str | None:
    """The first address of a name, as SGLang takes it; None where it has none."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_UNSPEC, 0, 0, socket.AI_ADDRCONFIG)[0][4][0])
    except (OSError, UnicodeError):
        return None


def source_address(host: str) -> str | None:
    """By the routing table, for a name or an address: what a UDP socket is bound to once it is connected."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, socket.AF_UNSPEC, socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as own:
            own.connect(address)
            return str(own.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def owns(address: str) -> bool:
    """A socket can be bound to it."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            own.bind((address, 0))
            return True
    except (OSError, ValueError):
        return False


def adapters() -> list[Hca]:
    """Ports of RDMA adapters as /sys/class/infiniband shows them."""
    ports = sorted(_RDMA.glob("*/ports/*"), key=lambda port: (port.parts[-3], int(port.name)))
    return [
        Hca(
            port.parts[-3],
            int(port.name),
            (_text(port / "state") or "").startswith("4:"),
            _text(port / "link_layer") or "",
            tuple(_gids(port)),
        )
        for port in ports
    ]


def _gids(port: Path) -> list[tuple[int, str, str]]:
    found = []
    for entry in sorted((port / "gids").glob("*"), key=lambda path: int(path.name)):
        gid = _text(entry)  # the kernel shows unused ones as zeros, and refuses to tell the kind of those
        if gid and ipaddress.ip_address(gid) != _NOTHING:
            kind = _text(port / "gid_attrs" / "types" / entry.name) or ""
            found.append((int(entry.name), str(ipaddress.ip_address(gid)), kind))
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
