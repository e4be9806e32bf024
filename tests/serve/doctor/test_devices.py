"""GPUs that are others than asked for, busy, ill, cut up or slowed down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.serve.doctor.made import GIB, H200, MadeMachine, check_of
from truecast.serve.doctor.devices import CHECKS
from truecast.serve.doctor.ground import Ground
from truecast.serve.installed import Installation
from truecast.serve.machine import GpuState
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import read_topology

EIGHT = tuple(replace(H200, index=i) for i in range(8))


def on(gpus: Sequence[GpuState] | None, **more: object) -> Ground:
    return replace(Ground(machine=MadeMachine(devices=gpus)), **more)  # type: ignore[arg-type]


def last(**changes: object) -> tuple[GpuState, ...]:
    return (*EIGHT[:7], replace(EIGHT[7], **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpus", "topology", "status", "words"),
    [
        (EIGHT, "h200:2x8", "PASS", "h200:2x8 is asked for"),
        (EIGHT, None, "PASS", "8 of NVIDIA H200 (90)"),
        (EIGHT, "b200:2x8", "FAIL", "B200 180 GB (100)"),
        (EIGHT[:7], "h200:2x8", "FAIL", "has 8 a node"),
        (last(name="NVIDIA A100", capability=80), "h200:2x8", "WARN", "not all of one kind"),
        ((), "h200:2x8", "SKIP", "lists none"),
        (None, "h200:2x8", "SKIP", "no GPU here"),
    ],
)
def test_those(gpus: Sequence[GpuState] | None, topology: str | None, status: str, words: str) -> None:
    verdict = check_of(CHECKS, "gpu.those")(on(gpus, topology=read_topology(topology) if topology else None))
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


def test_free(k3: StoredModel) -> None:
    run = check_of(CHECKS, "gpu.free")
    assert run(on(EIGHT)).status == "PASS"
    busy = run(on(last(used=3 * GIB, processes=((4711, 2 * GIB),))))
    assert busy.status == "WARN" and "GPU 7: 3.2 of 150.8 GB used, process 4711 2.1" in busy.evidence
    full = on(last(used=100 * GIB), model=k3, arguments={"--tp-size": "16"})
    assert run(full).status == "FAIL" and "the weights alone take" in run(full).evidence
    assert run(replace(full, server=SimpleNamespace(url="http://10.0.0.5:1"))).status == "SKIP"


@pytest.mark.parametrize(
    ("driver", "torch", "status"),
    [
        ("580.65.06", "2.11.0+cu130", "PASS"),
        ("570.86.15", "2.11.0+cu130", "WARN"),
        ("570.86.15", "2.11.0+cu128", "SKIP"),
        ("580.65.06", None, "PASS"),
        ("[N/A]", "2.11.0+cu130", "UNKNOWN"),
    ],
)
def test_driver(driver: str, torch: str | None, status: str) -> None:
    versions = {"torch": torch} if torch else {}
    installation = Installation(Path("/none"), versions, lambda module: "")
    assert check_of(CHECKS, "gpu.driver")(on(last(driver=driver)[7:], installation=installation)).status == status


@pytest.mark.parametrize(
    ("gpus", "status"), [(EIGHT, "PASS"), (last(ecc_errors=2), "FAIL"), ((replace(H200, ecc_errors=None),), "UNKNOWN")]
)
def test_health(gpus: Sequence[GpuState], status: str) -> None:
    assert check_of(CHECKS, "gpu.health")(on(gpus)).status == status


@pytest.mark.parametrize(
    ("gpus", "tp", "status", "words"),
    [
        (EIGHT, "8", "PASS", "no MIG"),
        (last(mig=True), "8", "FAIL", "GPU 7"),
        (last(mig=True), "1", "WARN", "one part"),
        (last(power_limit=450.0, power_default=700.0), "8", "WARN", "GPU 7: 450 of 700 W"),
        (last(power_limit=700.0, power_default=700.0), "8", "PASS", ""),
        (last(persistent=False), "8", "WARN", "persistence mode is off: GPU 7"),
    ],
)
def test_mode(gpus: Sequence[GpuState], tp: str, status: str, words: str) -> None:
    verdict = check_of(CHECKS, "gpu.mode")(on(gpus, arguments={"--tp-size": tp}))
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict
