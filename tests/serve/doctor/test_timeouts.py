"""NCCL's time against Marlin's repack, and the load barrier against what is read at the measured rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.conftest import SGLANG_VERSIONS, Release
from tests.serve.doctor.made import TWO_NODES, MadeMachine, check_of
from truecast.engines.sglang.fixes.load_barrier import MODULE
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.timeouts import CHECKS, bytes_of_a_node
from truecast.serve.installed import Installation
from truecast.serve.machine import ReadRate
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import read_topology
from truecast.serve.weights import Weights

MARLIN = {"--tp-size": "16", "--nnodes": "2", "--moe-runner-backend": "marlin"}
VARIABLE = "SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (MARLIN, "FAIL", "NCCL's default of 600 s"),
        ({**MARLIN, "--dist-timeout": "3600"}, "PASS", "--dist-timeout 3600"),
        ({**MARLIN, "--dist-timeout": "1800"}, "WARN", "in some 824 s; --dist-timeout 1800"),
        ({**MARLIN, "--ep-size": "16"}, "PASS", "(EP 16) in some 52 s"),
        ({**MARLIN, "--ep-size": "4"}, "WARN", ""),
        ({**MARLIN, "--moe-runner-backend": "flashinfer_mxfp4"}, "SKIP", "not repacked"),
        ({**MARLIN, "--tp-size": "1"}, "SKIP", "waits for nobody"),
    ],
)
def test_repack(k3: StoredModel, arguments: dict[str, str], status: str, words: str) -> None:
    verdict = check_of(CHECKS, "time.dist-timeout")(Ground(model=k3, arguments=arguments))
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


def test_nvfp4_falls_back_to_marlin_on_hopper_only(k3: StoredModel) -> None:
    model = replace(k3, format="nvfp4", dialect="modelopt")
    arguments = {"--tp-size": "32"}
    for topology, status in (("h200:4x8", "FAIL"), ("b200:4x8", "SKIP")):
        ground = Ground(model=model, arguments=arguments, topology=read_topology(topology))
        assert check_of(CHECKS, "time.dist-timeout")(ground).status == status
    assert check_of(CHECKS, "time.dist-timeout")(Ground(model=model, arguments=arguments)).status == "SKIP"


def test_nothing_given(k3: StoredModel) -> None:
    for ground in (Ground(), Ground(model=k3), Ground(model=k3, arguments=MARLIN, server=SimpleNamespace())):
        assert all(check_of(CHECKS, check.id)(ground).status == "SKIP" for check in CHECKS)


def _installation(version: str = "0.5.20", **plugins: str) -> Installation:
    return Installation(Path("/none"), {"sglang": version}, Release.of(version).sources, plugins=plugins)


def _ground(k3: StoredModel, folder: Path, rate: float | None, **changes: Any) -> Ground:
    (folder / "model.safetensors").touch()
    measured = None if rate is None else ReadRate(512_000_000, 0.512 / rate, "96 files")
    ground = Ground(
        model=replace(k3, location=str(folder)), arguments=TWO_NODES, machine=MadeMachine(rate=measured), environment={}
    )
    return replace(ground, **changes)


def test_load_barrier(k3: StoredModel, tmp_path: Path) -> None:
    run = check_of(CHECKS, "time.load-barrier")
    slow = run(_ground(k3, tmp_path, 0.5))
    assert slow.status == "FAIL"
    assert "measured 512 MB in 1.02 s = 0.50 GB/s (96 files)" in slow.evidence and "ranks wait 480 s" in slow.evidence
    assert f"export {VARIABLE}=6600" in slow.remedy
    assert run(_ground(k3, tmp_path, 8)).status == "PASS"
    one = {"--tp-size": "8", "--ep-size": "8"}
    assert run(_ground(k3, tmp_path, 0.5, arguments=one)).status == "WARN"


def test_load_barrier_without_a_measurement(k3: StoredModel, tmp_path: Path) -> None:
    run = check_of(CHECKS, "time.load-barrier")
    unmeasured = run(_ground(k3, tmp_path, None))
    assert unmeasured.status == "UNKNOWN" and "3.25 GB/s would be needed" in unmeasured.evidence
    small = replace(k3, weights=Weights(20 * 10**9, 0, 0), location=str(tmp_path))
    assert run(replace(_ground(k3, tmp_path, None), model=small)).status == "PASS"
    far = run(replace(_ground(k3, tmp_path, 1), model=replace(k3, location="s3://bucket/k3")))
    assert far.status == "UNKNOWN" and "no folder here" in far.evidence


def test_the_variable_counts_only_with_the_plug_in(k3: StoredModel, tmp_path: Path) -> None:
    run = check_of(CHECKS, "time.load-barrier")
    environment = {VARIABLE: "7200"}
    without = run(_ground(k3, tmp_path, 0.5, environment=environment, installation=_installation()))
    assert without.status == "FAIL" and "read by nobody without the plug-in" in without.evidence
    plugged = _installation(truecast="truecast.engines.sglang.plugin:register")
    assert run(_ground(k3, tmp_path, 0.5, environment=environment, installation=plugged)).status == "PASS"
    for off in ({"TRUECAST_SGLANG": "off"}, {"SGLANG_PLUGINS": "other"}, {"TRUECAST_SGLANG": "expert-load-filter"}):
        assert (
            run(_ground(k3, tmp_path, 0.5, environment={**environment, **off}, installation=plugged)).status == "FAIL"
        )


def test_the_filter_lets_a_node_read_its_own_experts(k3: StoredModel, tmp_path: Path) -> None:
    plugged = _installation(truecast="truecast.engines.sglang.plugin:register")
    ground = _ground(k3, tmp_path, 1, installation=plugged)
    size, which = bytes_of_a_node(ground)
    assert size == k3.weights.experts // 2 + k3.weights.split + k3.weights.whole and "its own experts" in which
    assert bytes_of_a_node(replace(ground, installation=None)) == (k3.weights.total, "")


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_the_limit_is_read_from_the_source(version: str, k3: StoredModel, tmp_path: Path) -> None:
    run = check_of(CHECKS, "time.load-barrier")
    found = run(_ground(k3, tmp_path, 8, installation=_installation(version)))
    assert "ranks wait 480 s" in found.evidence and "load_model_utils.py:" in found.evidence
    other = Release.of(version).edited(MODULE, "TIMEOUT_S = 480", "TIMEOUT_S = 9000")
    changed = Installation(Path("/none"), {"sglang": version}, other.sources)
    assert run(_ground(k3, tmp_path, 0.5, installation=changed)).status == "PASS"
