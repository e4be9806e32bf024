"""RDMA adapters: named ones that are not there, beginnings that mean more, GID tables, containers."""

from __future__ import annotations

import pytest

from tests.serve.doctor.made import H200, TWO_NODES, MadeMachine, adapter, check_of
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.rdma import CHECKS
from truecast.serve.machine import Limits

IB = (adapter("mlx5_0"), adapter("mlx5_1"))
TEN = (*IB, adapter("mlx5_10"))
ROCE = (adapter("mlx5_0", "Ethernet"), adapter("mlx5_1", "Ethernet"))
FILES = (1024, 1024)


def two(machine: MadeMachine, **environment: str) -> Ground:
    return Ground(arguments=TWO_NODES, machine=machine, environment=environment)


@pytest.mark.parametrize(
    ("ground", "status", "words"),
    [
        (two(MadeMachine(hcas=IB)), "PASS", "mlx5_0:1 (InfiniBand, active), mlx5_1:1"),
        (two(MadeMachine(hcas=IB), NCCL_IB_HCA="mlx5_0,mlx5_1"), "PASS", "NCCL_IB_HCA=mlx5_0,mlx5_1"),
        (two(MadeMachine(hcas=IB), NCCL_IB_HCA="mlx5_7"), "WARN", "goes over TCP"),
        (two(MadeMachine(hcas=IB), NCCL_IB_HCA="mlx5_0,mlx5_7"), "WARN", "names mlx5_7: none"),
        (two(MadeMachine(hcas=(IB[0], adapter("mlx5_1", active=False))), NCCL_IB_HCA="mlx5_0,mlx5_1"), "WARN", "down"),
        (two(MadeMachine(hcas=TEN), NCCL_IB_HCA="mlx5_1"), "WARN", "the beginning of mlx5_10 too"),
        (two(MadeMachine(hcas=TEN), NCCL_IB_HCA="=mlx5_1"), "PASS", ""),
        (two(MadeMachine(hcas=TEN), NCCL_IB_HCA="^mlx5_10"), "PASS", ""),
        (two(MadeMachine(hcas=TEN), NCCL_IB_HCA="mlx5"), "PASS", ""),
        (two(MadeMachine(hcas=()), NCCL_IB_HCA="mlx5"), "WARN", "there are: none"),
        (two(MadeMachine(hcas=(), devices=(H200,))), "WARN", "goes over TCP"),
        (two(MadeMachine(hcas=())), "SKIP", "no node that serves"),
        (two(MadeMachine(hcas=IB), NCCL_IB_DISABLE="1"), "WARN", "over TCP"),
        (two(MadeMachine(hcas=(IB[0], ROCE[1]))), "WARN", "Ethernet and InfiniBand"),
        (two(MadeMachine(hcas=(IB[0], ROCE[1])), NCCL_IB_HCA="=mlx5_0"), "PASS", ""),
        (Ground(arguments={}, machine=MadeMachine()), "SKIP", "one node"),
    ],
)
def test_adapters(ground: Ground, status: str, words: str) -> None:
    verdict = check_of(CHECKS, "network.adapters")(ground)
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


@pytest.mark.parametrize(
    ("ground", "status", "words"),
    [
        (two(MadeMachine(hcas=ROCE), NCCL_IB_GID_INDEX="3"), "PASS", "mlx5_0, mlx5_1"),
        (two(MadeMachine(hcas=ROCE), NCCL_IB_GID_INDEX="5"), "FAIL", "3: ::ffff:10.0.0.5 RoCE v2"),
        (two(MadeMachine(hcas=ROCE), NCCL_IB_GID_INDEX="0"), "WARN", "RoCE v1"),
        (two(MadeMachine(hcas=ROCE), NCCL_IB_GID_INDEX=""), "FAIL", "is no index"),
        (two(MadeMachine(hcas=ROCE)), "PASS", "is not set"),
        (two(MadeMachine(hcas=ROCE), NCCL_IB_GID_INDEX="-1"), "PASS", "to choose"),
        (
            two(MadeMachine(hcas=(type(IB[0])("mlx5_0", 1, True, "Ethernet", ((0, "fe80::1", "RoCE v2"),)),))),
            "WARN",
            "mlx5_0",
        ),
        (two(MadeMachine(hcas=IB), NCCL_IB_GID_INDEX="9"), "SKIP", "InfiniBand"),
    ],
)
def test_gids(ground: Ground, status: str, words: str) -> None:
    verdict = check_of(CHECKS, "network.gid")(ground)
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


@pytest.mark.parametrize(
    ("machine", "status", "words"),
    [
        (MadeMachine(), "PASS", "unlimited"),
        (MadeMachine(open_verbs=False), "WARN", "no /dev/infiniband/uverbs*"),
        (MadeMachine(limit=Limits(FILES, (8 << 20, 8 << 20))), "FAIL", "8,388,608 bytes"),
        (MadeMachine(limit=Limits(FILES, (1 << 30, 1 << 30))), "WARN", ""),
        (MadeMachine(limit=Limits(FILES, (65536, 65536), may_lock=True)), "PASS", "CAP_IPC_LOCK"),
        (MadeMachine(hcas=()), "SKIP", "no active RDMA adapter"),
    ],
)
def test_container(machine: MadeMachine, status: str, words: str) -> None:
    verdict = check_of(CHECKS, "network.container")(two(machine))
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict
