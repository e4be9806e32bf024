"""The address that SGLang tells other nodes, against the route to the head; the head's own address and port."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from tests.engines.conftest import SGLANG_VERSIONS, Release
from tests.serve.doctor.made import DOCKER, FABRIC, HEAD, LOOPBACK, OFFICE, TWO_NODES, MadeMachine, check_of
from truecast.serve.doctor.addresses import CHECKS, NETWORK, advertised
from truecast.serve.doctor.ground import Ground
from truecast.serve.installed import Installation
from truecast.serve.machine import ThisMachine

V6 = "fd00::5"


def two(machine: MadeMachine | None = None, environment: dict[str, str] | None = None, **arguments: str) -> Ground:
    named = {f"--{name.replace('_', '-')}": value for name, value in arguments.items()}
    return Ground(arguments={**TWO_NODES, **named}, machine=machine or MadeMachine(), environment=environment or {})


@pytest.mark.parametrize(
    ("ground", "status", "words"),
    [
        (two(environment={"SGLANG_HOST_IP": "10.0.0.5"}), "PASS", "the route to 10.0.0.1 leaves by 10.0.0.5 on eth1"),
        (two(), "FAIL", "would advertise 192.168.1.5, by the route to 8.8.8.8"),
        (two(MadeMachine(routes={"": "10.0.0.5"})), "WARN", "by chance"),
        (two(environment={"HOST_IP": "10.0.0.5"}), "PASS", "by HOST_IP"),
        (two(environment={"SGLANG_HOST_IP": HEAD}), "FAIL", "is not an address of this node, which has 10.0.0.5/24"),
        (two(environment={"SGLANG_HOST_IP": "127.0.0.1"}), "FAIL", "reached by nobody else"),
        (two(environment={"SGLANG_HOST_IP": "node5"}), "FAIL", "no IP address"),
        (two(environment={"SGLANG_HOST_IP": "192.168.1.5"}), "WARN", "the others must reach 192.168.1.5 too"),
        (
            two(MadeMachine(links=(LOOPBACK, FABRIC, DOCKER)), {"SGLANG_HOST_IP": "172.17.0.1"}),
            "FAIL",
            "would advertise 172.17.0.1",
        ),
        (two(environment={"SGLANG_LOCAL_IP_NIC": "eth1"}), "WARN", "by SGLANG_LOCAL_IP_NIC=eth1"),
        (two(MadeMachine(routes={}, named="127.0.1.1")), "FAIL", "would advertise 0.0.0.0"),
        (two(MadeMachine(routes={}), {"SGLANG_HOST_IP": "10.0.0.5"}), "PASS", "the route to 10.0.0.1 is not known"),
        (two(environment={"SGLANG_HOST_IP": "$HOST"}), "PASS", "filled in on each node"),
        (Ground(arguments=TWO_NODES), "FAIL", "neither SGLANG_HOST_IP nor HOST_IP is set"),
        (Ground(arguments={"--tp-size": "8"}, machine=MadeMachine()), "SKIP", "one node"),
        (Ground(machine=MadeMachine()), "SKIP", "arguments are not given"),
        (Ground(arguments=TWO_NODES, server=SimpleNamespace(url="http://x:1")), "SKIP", "its ranks have met"),
    ],
)
def test_host_ip(ground: Ground, status: str, words: str) -> None:
    verdict = check_of(CHECKS, "network.host-ip")(ground)
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


def test_an_ipv6_head() -> None:
    machine = MadeMachine(
        links=(LOOPBACK, FABRIC, type(FABRIC)("eth2", (f"{V6}/64",))), routes={"fd00::1": V6, "": "192.168.1.5"}
    )
    ground = two(machine, {"SGLANG_HOST_IP": V6}, dist_init_addr="[fd00::1]:20000")
    assert check_of(CHECKS, "network.host-ip")(ground).status == "PASS"
    verdict = check_of(CHECKS, "network.host-ip")(two(machine, dist_init_addr="[fd00::1]:20000"))
    assert verdict.status == "FAIL" and f"export SGLANG_HOST_IP={V6}" in verdict.remedy


@pytest.mark.parametrize(
    ("ground", "status", "words"),
    [
        (two(), "PASS", "10.0.0.1:20000"),
        (two(MadeMachine(names={"head": HEAD}), dist_init_addr="head:20000"), "PASS", "is 10.0.0.1"),
        (two(dist_init_addr="[fd00::1]:20000"), "PASS", ""),
        (two(dist_init_addr="fd00::1:20000"), "FAIL", "write [fd00::1]:20000"),
        (two(dist_init_addr="[fd00::zz]:20000"), "FAIL", ""),
        (two(dist_init_addr=HEAD), "FAIL", "no port"),
        (two(dist_init_addr=f"{HEAD}:70000"), "FAIL", "is no port"),
        (two(dist_init_addr="head:20000"), "FAIL", "does not resolve"),
        (two(MadeMachine(names={"head": "127.0.1.1"}), dist_init_addr="head:20000"), "FAIL", "wait for itself"),
        (two(dist_init_addr="$HEAD:20000"), "SKIP", "filled in"),
        (Ground(arguments={"--nnodes": "2"}), "FAIL", "no --dist-init-addr"),
    ],
)
def test_head(ground: Ground, status: str, words: str) -> None:
    verdict = check_of(CHECKS, "network.head")(ground)
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


@pytest.mark.parametrize(
    ("ground", "status"),
    [
        (two(), "PASS"),
        (two(dist_init_addr=f"{HEAD}:30000"), "FAIL"),
        (two(dist_init_addr=f"{HEAD}:20000", port="20000"), "FAIL"),
        (two(dist_init_addr=f"{HEAD}:29997"), "PASS"),
        (two(dist_init_addr=f"{HEAD}:29997", enable_dp_attention=""), "FAIL"),
        (two(dist_init_addr=f"{HEAD}:29993", enable_dp_attention="", dp_size="8"), "PASS"),
        (
            two(None, {"SGLANG_RUST_SERVER": "1"}, dist_init_addr=f"{HEAD}:29993", enable_dp_attention="", dp_size="8"),
            "FAIL",
        ),
    ],
)
def test_ports(ground: Ground, status: str) -> None:
    assert check_of(CHECKS, "network.ports")(ground).status == status


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
@pytest.mark.parametrize(
    "environment", [{}, {"HOST_IP": "10.9.9.9"}, {"SGLANG_HOST_IP": "10.8.8.8", "HOST_IP": "10.9.9.9"}]
)
def test_what_sglang_picks_is_what_its_own_code_picks(
    version: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its functions, cut out of the wheel, against ours, on the machine that runs the test."""
    for name in ("SGLANG_HOST_IP", "HOST_IP", "SGLANG_LOCAL_IP_NIC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    names = {"get_local_ip_auto", "get_local_ip_by_nic", "get_local_ip_by_remote"}
    space: dict[str, Any] = {"os": os, "socket": socket, "Optional": Optional, "logger": _Quiet()}
    theirs = Release.of(version).cut(NETWORK, names, space)
    address, _ = advertised(ThisMachine(), environment)
    assert theirs["get_local_ip_auto"]("0.0.0.0") == (address or "0.0.0.0")


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_evidence_names_the_line(version: str) -> None:
    release = Release.of(version)
    ground = Ground(arguments=TWO_NODES, installation=_installation(release))
    evidence = check_of(CHECKS, "network.host-ip")(ground).evidence
    line = int(evidence.rpartition("network.py:")[2].rstrip(")"))
    assert "SGLANG_HOST_IP" in release.sources(NETWORK).splitlines()[line - 1]


def test_a_version_that_picks_otherwise_is_unknown() -> None:
    release = Release.of("0.5.20").edited(NETWORK, "8.8.8.8", "9.9.9.9")
    ground = Ground(arguments=TWO_NODES, installation=_installation(release), machine=MadeMachine(links=(OFFICE,)))
    assert check_of(CHECKS, "network.host-ip")(ground).status == "UNKNOWN"


def _installation(release: Release) -> Installation:
    return Installation(Path("/none"), {"sglang": release.version}, release.sources)


class _Quiet:
    def debug(self, *args: object) -> None: ...

    warning = debug
