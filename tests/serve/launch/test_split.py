"""How GPUs are divided among replicas, and a model among the GPUs of one."""

from __future__ import annotations

import pytest

from tests.serve.launch.conftest import Launch, Released
from truecast.errors import UsageError
from truecast.serve.launch.split import divide
from truecast.serve.topology import read_topology


@pytest.mark.parametrize(
    ("form", "topology", "tp", "ep"),
    [
        ("mxfp4", "h200:2x8", 16, 16),  # SGLang's cookbook: TP16 / EP16
        ("mxfp4", "h200:4x8", 32, 32),
        ("mxfp4", "h100:4x8", 32, 32),
        ("mxfp4", "b300:1x8", 8, 1),  # the cookbook: TP8
        ("nvfp4", "b200:2x8", 16, 1),  # the NVFP4 card: TP16
        ("mxfp4", "b200:2x8", 16, 16),  # parts of 192 columns would be padded to 256
        ("w4afp8", "gh200:8x4", 32, 32),
    ],
)
def test_tp_and_ep(released: Released, form: str, topology: str, tp: int, ep: int) -> None:
    split = divide(getattr(released, form), read_topology(topology), 1)
    assert (split.tp, split.ep) == (tp, ep)


def test_replicas_take_whole_nodes(launch: Launch) -> None:
    plan = launch("mxfp4", "h200:4x8", replicas=2)
    assert (plan.tp, plan.nodes_per_replica, plan.replicas_per_node) == (16, 2, 1)
    assert [[plan.node_of(r, k) for k in range(2)] for r in range(2)] == [[0, 1], [2, 3]]
    assert plan.command("1", "a", 0) == plan.command("1", "a", 1)
    assert plan.port_of(1) == 30000


def test_replicas_that_share_nodes_have_ports_and_gpus_of_their_own(launch: Launch) -> None:
    plan = launch("mxfp4", "b300:2x16", replicas=4)
    assert (plan.tp, plan.nodes_per_replica, plan.replicas_per_node) == (8, 1, 2)
    assert [plan.node_of(r) for r in range(4)] == [0, 0, 1, 1]
    ports = [plan.command("0", "a", r)[plan.command("0", "a", r).index("--port") + 1] for r in range(4)]
    assert ports == ["30000", "30001", "30000", "30001"]
    assert [plan.command("0", "a", r)[-2:] for r in (1, 3)] == [["--base-gpu-id", "8"]] * 2
    assert "--base-gpu-id" not in plan.command("0", "a", 2)


@pytest.mark.parametrize(
    ("topology", "replicas", "why"),
    [
        ("gh200:7x4", 1, "do not divide over 28 GPUs"),
        ("h200:3x8", 2, "neither whole nodes nor equal parts"),
        ("h200:2x8", 3, "do not divide into 3 replicas"),
        ("h200:1x1", 0, "do not divide into 0 replicas"),
    ],
)
def test_what_does_not_divide(released: Released, topology: str, replicas: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        divide(released.mxfp4, read_topology(topology), replicas)


def test_a_head_with_colons_is_an_address_in_brackets(launch: Launch) -> None:
    plan = launch("mxfp4", "h200:2x8")
    assert "[fe80::1]:20000" in plan.command("0", "fe80::1")
