"""Addresses by which nodes find each other: the head's, and the one that SGLang tells the others of this node.

Rank 0 of every group tells the rest where its message queue listens (distributed/device_communicators/shm_broadcast.py).
With an address that the others do not reach, start-up hangs after NCCL is up, without an error.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, unknown, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.nodes import HEAD, alone, elsewhere, head_of, local, place, placeholder, read_head
from truecast.serve.machine import Machine

NETWORK = "sglang.srt.utils.network"
DERIVED = 6
"""Ports after that of ``--dist-init-addr`` which SGLang takes with DP attention (server_args.py, PortArgs); its server in
Rust takes one more for each data-parallel rank."""
_PROBES = ("8.8.8.8", "2001:4860:4860::8888")
_NAMES = ("SGLANG_HOST_IP", "HOST_IP")
SET_IT = "on every node export SGLANG_HOST_IP with that node's own address on the way to the head node"


def advertised(machine: Machine, environment: Mapping[str, str]) -> tuple[str | None, str]:
    """The address that ``get_local_ip_auto`` would take, and by which of its steps.

    As in SGLang 0.5.17, 0.5.20 and 0.5.23: the variables, the interface of ``SGLANG_LOCAL_IP_NIC``, the route to a public
    address (IPv4, then IPv6), what the machine's name resolves to unless that is loopback. None: it binds to 0.0.0.0.
    """
    for name in _NAMES:
        if environment.get(name):
            return environment[name], name
    if nic := environment.get("SGLANG_LOCAL_IP_NIC"):
        for address in (a.partition("/")[0] for i in machine.interfaces() if i.name == nic for a in i.addresses):
            if not local(address):
                return address, f"SGLANG_LOCAL_IP_NIC={nic}"
    for probe in _PROBES:
        if (source := machine.source_address(probe)) is not None:
            return source, f"the route to {probe}"
    if (own := machine.host_address()) is not None and not local(own):
        return own, "the machine's name"
    return None, "no step"


def _head(ground: Ground) -> Verdict:
    if why := alone(ground):
        return skipped(why)
    text = ground.argument(HEAD)
    if text is None:
        return failed(
            f"{ground.number('--nnodes', 1)} nodes, and no {HEAD}", f"give every node {HEAD} HEAD:PORT, the same"
        )
    if placeholder(text):
        return skipped(f"{HEAD} {text} is to be filled in")
    try:
        head = read_head(text)
    except ValueError as wrong:
        where = place(ground, NETWORK, "def parse(addr")
        return failed(f"{HEAD} {text}: {wrong} ({where})", "give it as HOST:PORT, an IPv6 address in brackets")
    machine = ground.machine
    address = head.host if machine is None or elsewhere(ground) else machine.resolve(head.host)
    if address is None:
        return failed(f"{HEAD} {text}: {head.host} does not resolve on this machine", "give the head node's IP address")
    if local(address):
        return failed(
            f"{HEAD} {text} is {address}: every node would wait for itself",
            "give the head node's address on the network between the nodes",
        )
    return passed(f"{HEAD} {text}" + (f" is {address}" if address != head.host else ""))


def _ports(ground: Ground) -> Verdict:
    if why := alone(ground):
        return skipped(why)
    text = ground.argument(HEAD) or ""
    port, serving = text.rpartition(":")[2], ground.number("--port", 30000)
    if not port.isdecimal():
        return skipped(f"{HEAD} has no port")
    first = int(port)
    if first == serving:
        return failed(
            f"{HEAD} and --port both want {serving}: the ranks meet there, and the HTTP server cannot listen",
            f"give {HEAD} another port, such as {20000 if serving != 20000 else 21000}",
        )
    derived = DERIVED + (ground.number("--dp-size", 1) if ground.environment.get("SGLANG_RUST_SERVER") else 0)
    if ground.argument("--enable-dp-attention") is not None and first < serving <= first + derived:
        return failed(
            f"--port {serving} lies among the {derived} ports after {first}, which DP attention takes for its processes",
            f"give {HEAD} a port that is further from --port",
        )
    return passed(f"ranks meet at port {first}, HTTP is served at {serving}")


def _host_ip(ground: Ground) -> Verdict:
    if why := alone(ground):
        return skipped(why)
    name = next((n for n in _NAMES if ground.environment.get(n)), None)
    value = ground.environment[name] if name else ""
    where = place(ground, NETWORK, 'os.getenv("SGLANG_HOST_IP"')
    if ground.installation is not None and not _known(ground):
        return unknown(f"{where} does not take an address as known versions do", SET_IT)
    if name and placeholder(value):
        return passed(f"{name} is filled in on each node, by its own shell")
    if name and (wrong := _no_address(value)):
        return failed(f"{name}={value} {wrong} ({where})", SET_IT)
    machine = ground.machine
    if machine is None or elsewhere(ground):
        if name:
            return passed(f"{name}={value}; the machine was not looked at")
        return failed(f"neither {' nor '.join(_NAMES)} is set ({where})", SET_IT)
    if name and not machine.owns(value):
        own = ", ".join(a for i in machine.interfaces() for a in i.addresses if not local(a.partition("/")[0]))
        return failed(f"{name}={value} is not an address of this node, which has {own or 'none'}", SET_IT)
    return _against_route(ground, machine, name, where)


def _against_route(ground: Ground, machine: Machine, name: str | None, where: str) -> Verdict:
    address, step = advertised(machine, ground.environment)
    picked = f"SGLang would advertise {address or '0.0.0.0'}, by {step} ({where})"
    head = head_of(ground)
    route = machine.source_address(head.host) if head else None
    if route is None:
        said = f"the route to {head.host} is not known" if head else f"{HEAD} names no address yet"
        return passed(f"{picked}; {said}") if name else failed(f"not set; {picked}; {said}", SET_IT)
    said = f"{picked}, the route to {head.host if head else ''} leaves by {route}{_on(machine, route)}"
    if address == route:
        return passed(said) if name else warned(f"not set; {said}: right here, by chance", SET_IT)
    remedy = f"on this node: export SGLANG_HOST_IP={route}; {SET_IT}"
    if name and not _virtual(machine, address):
        return warned(f"{said}: the others must reach {address} too", remedy)
    return failed(said if name else f"not set; {said}", remedy)


def _no_address(value: str) -> str | None:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return "is no IP address: ZeroMQ binds to addresses, not to names"
    return "is reached by nobody else" if local(value) else None


def _known(ground: Ground) -> bool:
    assert ground.installation is not None
    try:
        text = ground.installation.sources(NETWORK)
    except LookupError:
        return False
    return all(piece in text for piece in ('os.getenv("SGLANG_HOST_IP"', "SGLANG_LOCAL_IP_NIC", *_PROBES))


def _on(machine: Machine, address: str) -> str:
    named = (i.name for i in machine.interfaces() for a in i.addresses if a.partition("/")[0] == address)
    return next((f" on {name}" for name in named), "")


def _virtual(machine: Machine, address: str | None) -> bool:
    return any(i.virtual for i in machine.interfaces() for a in i.addresses if a.partition("/")[0] == address)


CHECKS: Iterable[Check] = (
    Check(
        "network.head",
        "every node is told where the head node is",
        _head,
        ("https://github.com/sgl-project/sglang/issues/2892", "sglang/srt/utils/network.py"),
    ),
    Check(
        "network.ports",
        "the ranks' port and the server's differ",
        _ports,
        ("https://github.com/sgl-project/sglang/issues/12450", "sglang/srt/server_args.py, PortArgs"),
    ),
    Check(
        "network.host-ip",
        "the address that SGLang tells other nodes is the one that they reach",
        _host_ip,
        (
            "https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/3",
            "sglang/srt/utils/network.py, get_local_ip_auto",
        ),
    ),
)
