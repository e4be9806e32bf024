"""NCCL and Gloo between nodes: which interfaces and RDMA adapters they would use, and whether those are there.

Rules of NCCL_SOCKET_IFNAME and NCCL_IB_HCA (``^`` leaves out, ``=`` takes names whole, otherwise they are beginnings) and
NCCL's own choice are those of its documentation; Gloo takes whole names alone (torch, ProcessGroupGloo).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.nodes import alone, elsewhere, head_of, here, local, placeholder
from truecast.serve.machine import Interface, Machine

NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_ISSUE = "https://github.com/sgl-project/sglang/issues/12450"


@dataclass(frozen=True, slots=True)
class Names:
    """A list of NCCL's: names or beginnings of names, to be taken or to be left out. A name may end in ``:PORT``."""

    names: tuple[str, ...]
    whole: bool
    out: bool

    def one(self, pattern: str, name: str, port: int | None = None) -> bool:
        """Does one entry of the list mean this device?"""
        wanted, _, number = pattern.partition(":")
        same = name == wanted if self.whole else name.startswith(wanted)
        return same and (not number or port is None or number == str(port))

    def take(self, name: str, port: int | None = None) -> bool:
        """Is the device used?"""
        return any(self.one(pattern, name, port) for pattern in self.names) is not self.out


def read_names(text: str) -> Names:
    """``eth,ib``, ``=eth0``, ``^docker`` or ``^=eth0``."""
    rest = text.removeprefix("^")
    whole = rest.startswith("=")
    names = tuple(part for part in rest.removeprefix("=").split(",") if part)
    return Names(names, whole, text.startswith("^"))


def _up(machine: Machine) -> list[Interface]:
    return [i for i in machine.interfaces() if i.up and any(not _link(a) for a in i.addresses)]


def _link(address: str) -> bool:
    return ipaddress.ip_interface(address).ip.is_link_local


def nccl_takes(interfaces: Sequence[Interface], text: str | None) -> list[Interface]:
    """Interfaces that NCCL would use, the first for its handshake: by the variable, or by its own order of ``ib*``, then
    all but ``docker*`` and ``lo*``, then ``docker*``, then ``lo*``."""
    if text:
        names = read_names(text)
        return [i for i in interfaces if names.take(i.name)]
    special = ("docker", "lo")
    orders = (
        [i for i in interfaces if i.name.startswith("ib")],
        [i for i in interfaces if not i.name.startswith(special)],
        [i for i in interfaces if i.name.startswith("docker")],
        [i for i in interfaces if i.name.startswith("lo")],
    )
    return next((found for found in orders if found), [])


def _nccl(ground: Ground) -> Verdict:
    if why := alone(ground) or elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    text = ground.environment.get(NCCL)
    if text and placeholder(text):
        return passed(f"{NCCL} is filled in on each node, by its own shell")
    interfaces = _up(machine)
    taken = nccl_takes(interfaces, text)
    told = f"{NCCL}={text}" if text else f"{NCCL} is not set"
    there = ", ".join(i.name for i in interfaces)
    if not taken:
        return failed(f"{told} leaves none of the interfaces that are up: {there}", _name_it(ground, NCCL))
    picked = f"{told}: NCCL would take {', '.join(i.name for i in taken)}, {taken[0].name} for its handshake"
    return _judge(ground, taken[0], picked, NCCL)


def _gloo(ground: Ground) -> Verdict:
    if why := alone(ground) or elsewhere(ground):
        return skipped(why)
    machine = here(ground)
    text = ground.environment.get(GLOO)
    if not text:
        return _gloo_by_name(ground, machine)
    if placeholder(text):
        return passed(f"{GLOO} is filled in on each node, by its own shell")
    if text[0] in "^=":
        return failed(
            f"{GLOO}={text}: Gloo looks for an interface of just that name, {text[0]} included", _name_it(ground, GLOO)
        )
    interfaces = {i.name: i for i in _up(machine)}
    for name in text.split(","):
        if name not in interfaces:
            return failed(
                f"{GLOO}={text}: no interface {name} is up with an address; there are {', '.join(interfaces)}",
                _name_it(ground, GLOO),
            )
    return _judge(ground, interfaces[text.split(",")[0]], f"{GLOO}={text}", GLOO)


def _gloo_by_name(ground: Ground, machine: Machine) -> Verdict:
    own = machine.host_address()
    told = f"{GLOO} is not set, so Gloo takes what the machine's name resolves to: {own or 'nothing'}"
    head = head_of(ground)
    route = machine.source_address(head.host) if head else None
    if own is None or local(own):
        return failed(f"{told}, which no other node reaches", _name_it(ground, GLOO))
    if route is None:
        return warned(f"{told}; the way to the head node is not known", _name_it(ground, GLOO))
    if own != route:
        return warned(f"{told}, the route to {head.host if head else ''} leaves by {route}", _name_it(ground, GLOO))
    return passed(f"{told}, from where the route to the head node leaves")


def _judge(ground: Ground, interface: Interface, told: str, variable: str) -> Verdict:
    """The first interface against the head's network."""
    addresses = [ipaddress.ip_interface(a) for a in interface.addresses]
    if all(a.ip.is_loopback for a in addresses):
        return failed(f"{told}: {interface.name} is loopback", _name_it(ground, variable))
    machine = here(ground)
    head = head_of(ground)
    target = machine.resolve(head.host) if head else None
    if head is None or target is None:
        return passed(f"{told}; the head node's address is not known, so not compared with it")
    at = ipaddress.ip_address(target)
    has = ", ".join(interface.addresses)
    if any(at in a.network for a in addresses if a.version == at.version):
        return passed(f"{told}; {interface.name} has {has}, the network of the head node {target}")
    route = machine.source_address(head.host)
    if any(str(a.ip) == route for a in addresses):
        return passed(f"{told}; {interface.name} has {has}, from where the route to the head node {target} leaves")
    return warned(
        f"{told}; {interface.name} has {has}, and the route to the head node {target} leaves by {route or 'none'}",
        _name_it(ground, variable),
    )


def _name_it(ground: Ground, variable: str) -> str:
    """The remedy, with the interface that is on the way to the head node where it is known."""
    machine = here(ground)
    head = head_of(ground)
    route = machine.source_address(head.host) if head else None
    name = next((i.name for i in _up(machine) if route in {a.partition("/")[0] for a in i.addresses}), None)
    value = ("=" if variable == NCCL else "") + name if name else "the interface on the way to the head node"
    return f"export {variable}={value}" if name else f"set {variable} to {value}, on every node"


def _mnnvl(ground: Ground) -> Verdict:
    if why := alone(ground):
        return skipped(why)
    gpus = ground.machine.gpus() if ground.machine is not None else None
    name = gpus[0].name if gpus else ground.topology.gpu.title if ground.topology else ""
    if not any(tag in name.upper() for tag in ("GB200", "GB300")):
        return skipped(f"{name or 'the GPU is not known, so it'} has no NVLink between nodes that is known")
    variables = ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE")
    if off := [f"{n}={ground.environment[n]}" for n in variables if ground.environment.get(n) == "0"]:
        return warned(
            f"{', '.join(off)} on {name}: ranks of several nodes talk over RDMA instead of NVLink",
            "unset it: SGLang sets both to 1 on these GPUs",
        )
    return passed(f"{name}: {' and '.join(variables)} are not off, and SGLang sets them to 1 where they are not set")


CHECKS: Iterable[Check] = (
    Check("network.nccl", "NCCL uses an interface on the way to the head node", _nccl, (_ISSUE, _DOCS)),
    Check(
        "network.gloo",
        "Gloo uses an interface on the way to the head node",
        _gloo,
        (_ISSUE, "torch, csrc/distributed/c10d/ProcessGroupGloo.cpp"),
    ),
    Check(
        "network.mnnvl",
        "NVLink between nodes is used where there is one",
        _mnnvl,
        ("sglang/srt/entrypoints/engine.py, _set_envs_and_config", _DOCS),
    ),
)
