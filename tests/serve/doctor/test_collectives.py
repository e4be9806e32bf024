"""Interfaces that NCCL and Gloo would use, by the variables and without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.serve.doctor.made import DOCKER, FABRIC, H200, LOOPBACK, OFFICE, TWO_NODES, MadeMachine, check_of
from truecast.serve.doctor.collectives import CHECKS, nccl_takes, read_names
from truecast.serve.doctor.ground import Ground
from truecast.serve.machine import Interface

FAR = Interface("eth2", ("10.7.0.5/24",))
DOWN = Interface("eth3", ("10.0.0.6/24",), up=False)


def two(machine: MadeMachine | None = None, **environment: str) -> Ground:
    return Ground(arguments=TWO_NODES, machine=machine or MadeMachine(), environment=environment)


@pytest.mark.parametrize(
    ("ground", "status", "words"),
    [
        (two(NCCL_SOCKET_IFNAME="=eth1"), "PASS", "the network of the head node 10.0.0.1"),
        (two(NCCL_SOCKET_IFNAME="eth"), "PASS", "eth1, eth0, eth1 for its handshake"),
        (two(NCCL_SOCKET_IFNAME="=eth0"), "WARN", "leaves by 10.0.0.5"),
        (two(NCCL_SOCKET_IFNAME="=eth"), "FAIL", "leaves none of the interfaces that are up: lo, eth1, eth0"),
        (two(NCCL_SOCKET_IFNAME="ens"), "FAIL", "leaves none"),
        (two(NCCL_SOCKET_IFNAME="lo"), "FAIL", "lo is loopback"),
        (two(NCCL_SOCKET_IFNAME="^lo,eth0"), "PASS", "would take eth1"),
        (two(), "PASS", "is not set: NCCL would take eth1, eth0"),
        (two(MadeMachine(links=(LOOPBACK, OFFICE, FABRIC))), "WARN", "eth0 for its handshake"),
        (two(MadeMachine(links=(LOOPBACK, DOWN)), NCCL_SOCKET_IFNAME="eth3"), "FAIL", "leaves none"),
        (two(MadeMachine(links=(FAR,), routes={"10.0.0.1": "10.7.0.5"})), "PASS", "from where the route"),
        (two(NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-$(of_route)}"), "PASS", "filled in on each node"),
        (Ground(arguments={}, machine=MadeMachine()), "SKIP", "one node"),
        (Ground(arguments=TWO_NODES), "SKIP", "no machine was looked at"),
    ],
)
def test_nccl(ground: Ground, status: str, words: str) -> None:
    verdict = check_of(CHECKS, "network.nccl")(ground)
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


def test_the_remedy_names_the_interface() -> None:
    verdict = check_of(CHECKS, "network.nccl")(two(NCCL_SOCKET_IFNAME="ens"))
    assert verdict.remedy == "export NCCL_SOCKET_IFNAME==eth1"
    assert check_of(CHECKS, "network.gloo")(two(GLOO_SOCKET_IFNAME="ens")).remedy == "export GLOO_SOCKET_IFNAME=eth1"


@pytest.mark.parametrize(
    ("ground", "status", "words"),
    [
        (two(GLOO_SOCKET_IFNAME="eth1"), "PASS", "the network of the head node"),
        (two(GLOO_SOCKET_IFNAME="$NCCL_SOCKET_IFNAME"), "PASS", "filled in on each node"),
        (two(GLOO_SOCKET_IFNAME="eth"), "FAIL", "no interface eth is up"),
        (two(GLOO_SOCKET_IFNAME="=eth1"), "FAIL", "= included"),
        (two(GLOO_SOCKET_IFNAME="^docker0"), "FAIL", "^ included"),
        (two(GLOO_SOCKET_IFNAME="eth0"), "WARN", "leaves by 10.0.0.5"),
        (two(), "PASS", "resolves to: 10.0.0.5"),
        (two(MadeMachine(named="127.0.1.1")), "FAIL", "which no other node reaches"),
        (two(MadeMachine(named=None)), "FAIL", "nothing"),
        (two(MadeMachine(named="192.168.1.5")), "WARN", "leaves by 10.0.0.5"),
    ],
)
def test_gloo(ground: Ground, status: str, words: str) -> None:
    verdict = check_of(CHECKS, "network.gloo")(ground)
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("eth", "eth1 eth0"),
        ("=eth", ""),
        ("eth0,docker", "eth0 docker0"),
        ("^eth", "lo docker0"),
        ("^=eth", "lo eth1 eth0 docker0"),
        ("^docker,lo", "eth1 eth0"),
        (None, "eth1 eth0"),
    ],
)
def test_names(text: str | None, taken: str) -> None:
    assert [i.name for i in nccl_takes((LOOPBACK, FABRIC, OFFICE, DOCKER), text)] == taken.split()


def test_infiniband_interfaces_come_first() -> None:
    ib = Interface("ib0", ("10.0.0.7/24",))
    assert nccl_takes((LOOPBACK, OFFICE, ib), None) == [ib]
    assert nccl_takes((LOOPBACK, DOCKER), None) == [DOCKER]


def test_a_port_in_a_name() -> None:
    names = read_names("mlx5_0:2")
    assert names.take("mlx5_0", 2) and not names.take("mlx5_0", 1)


@pytest.mark.parametrize(
    ("name", "environment", "status"),
    [
        ("NVIDIA GB200", {}, "PASS"),
        ("NVIDIA GB300", {"NCCL_MNNVL_ENABLE": "1"}, "PASS"),
        ("NVIDIA GB200", {"NCCL_CUMEM_ENABLE": "0"}, "WARN"),
        ("NVIDIA GB200", {"NCCL_MNNVL_ENABLE": "0"}, "WARN"),
        ("NVIDIA H200", {"NCCL_MNNVL_ENABLE": "0"}, "SKIP"),
    ],
)
def test_nvlink_between_nodes(name: str, environment: dict[str, str], status: str) -> None:
    machine = MadeMachine(devices=(replace(H200, name=name),))
    assert check_of(CHECKS, "network.mnnvl")(two(machine, **environment)).status == status
