"""What the checks of network and machine share: is there more than one node, is this one of them, which is the head?"""

from __future__ import annotations

import ipaddress
import urllib.parse
from dataclasses import dataclass

from truecast.serve.doctor import setting
from truecast.serve.doctor.ground import Ground
from truecast.serve.machine import Machine

HEAD = "--dist-init-addr"


@dataclass(frozen=True, slots=True)
class Head:
    """``--dist-init-addr``: host without brackets, and port."""

    host: str
    port: int


def alone(ground: Ground) -> str | None:
    """Why there is no network between nodes to look at; None where there is one."""
    if ground.server is not None:
        return "the server runs: its ranks have met"
    if ground.arguments is None:
        return "the server's arguments are not given"
    if ground.number("--nnodes", 1) < 2:
        return "one node: --nnodes is not above 1"
    return None


def elsewhere(ground: Ground) -> str | None:
    """Why facts of this machine say nothing of the deployment; None where they do."""
    machine = ground.machine
    if machine is None:
        return "no machine was looked at"
    if ground.server is None:
        return None
    host = urllib.parse.urlsplit(ground.server.url).hostname or ""
    address = machine.resolve(host)
    return None if address is not None and machine.owns(address) else f"the server runs on {host}, not here"


def here(ground: Ground) -> Machine:
    """The machine, where :func:`elsewhere` has nothing against it."""
    assert ground.machine is not None
    return ground.machine


def placeholder(text: str) -> bool:
    """Is it to be filled in later, such as ``$HEAD:20000``?"""
    return "$" in text or "<" in text


def read_head(text: str) -> Head:
    """As SGLang reads it (utils/network.py, ``NetworkAddress.parse``). Raises: ValueError that says what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError("has no port: it is HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        raise ValueError(f"is IPv6 without brackets, which SGLang refuses: write [{host}]:{port}")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{port!r} is no port")
    return Head(host, int(port))


def head_of(ground: Ground) -> Head | None:
    """The head node's address, None where it is not given, is to be filled in, or does not parse."""
    text = ground.argument(HEAD)
    if text is None or placeholder(text):
        return None
    try:
        return read_head(text)
    except ValueError:
        return None


def local(address: str) -> bool:
    """Does nobody else reach it: loopback, link-local, or no address in particular?"""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return found.is_loopback or found.is_link_local or found.is_unspecified


def place(ground: Ground, module: str, text: str) -> str:
    """File and line of a piece of SGLang's source, such as ``sglang/srt/utils/network.py:360``; the file where it is not
    found, or no SGLang is given."""
    if ground.installation is not None:
        try:
            return setting.place(ground.installation, module, text)
        except LookupError:
            pass
    return f"{module.replace('.', '/')}.py"
