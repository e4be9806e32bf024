"""Variables of every node: the same text on each, and what it comes to."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.launch.conftest import DSPARK, Launch
from truecast.serve.launch.plan import LaunchPlan
from truecast.serve.launch.shell import export_lines


def variables(plan: LaunchPlan) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in plan.environment}


def exported(plan: LaunchPlan, before: str, names: str, tmp_path: Path) -> list[str]:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    script = "\n".join(["set -eu", before, *export_lines(plan), *(f'echo "${name}"' for name in names.split())])
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_each_node_finds_its_own_address_and_interface(launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    names = "SGLANG_HOST_IP NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME"
    assert exported(launch("mxfp4", "h200:2x8"), "HEAD=127.0.0.1", names, tmp_path) == ["127.0.0.1", "lo", "lo"]


def test_what_the_user_set_is_kept(launch: Launch, tmp_path: Path) -> None:
    before = "HEAD=127.0.0.1; export SGLANG_HOST_IP=10.1.2.3 NCCL_SOCKET_IFNAME=bond0"
    names = "SGLANG_HOST_IP NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME SGLANG_EXPERT_LOAD_FILTER"
    assert exported(launch("mxfp4", "h200:2x8"), before, names, tmp_path) == ["10.1.2.3", "bond0", "bond0", "896"]


def test_one_node_needs_no_address(launch: Launch) -> None:
    plan = launch("mxfp4", "b300:1x8")
    assert not {"SGLANG_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & variables(plan).keys()
    assert not {"--nnodes", "--node-rank", "--dist-init-addr"} & {setting.name for setting in plan.arguments}


@pytest.mark.parametrize(
    ("topology", "seconds"), [("gh200:8x4", None), ("h200:4x8", "600"), ("h200:2x8", "1200"), ("b200:2x8", "1200")]
)
def test_the_load_barrier_is_raised_where_reading_takes_long(
    launch: Launch, topology: str, seconds: str | None
) -> None:
    assert variables(launch("mxfp4", topology)).get("SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S") == seconds


def test_nccl_settings_are_for_the_machines_they_were_measured_on(launch: Launch) -> None:
    def nccl(topology: str) -> set[str]:
        return {n for n in variables(launch("mxfp4", topology)) if n.startswith("NCCL_") and "IFNAME" not in n}

    assert len(nccl("gh200:8x4")) == 4
    assert not nccl("h200:4x8") and not nccl("gh200:32x1") and not nccl("b300:1x8")


def test_variables_of_the_plug_in_go_with_format_and_release(launch: Launch) -> None:
    def found(form: str, topology: str, version: str = "0.5.20") -> set[str]:
        names = {"K3_W4_SRC2DST", "SGLANG_MARLIN_EP_BLOCK", "SGLANG_EXPERT_LOAD_FILTER", "SGLANG_RAGGED_VERIFY_MODE"}
        return names & variables(launch(form, topology, version=version)).keys()

    assert found("mxfp4", "h200:2x8") == {"SGLANG_MARLIN_EP_BLOCK", "SGLANG_EXPERT_LOAD_FILTER"}
    assert found("w4afp8", "h200:2x8") == {"K3_W4_SRC2DST", "SGLANG_EXPERT_LOAD_FILTER"}
    assert found("w4afp8", "h200:2x8", "0.5.23") == {"SGLANG_EXPERT_LOAD_FILTER"}
    assert found("nvfp4", "b200:2x8") == set()  # no EP there
    drafted = launch("nvfp4", "b200:2x8", draft=DSPARK)
    assert variables(drafted)["SGLANG_RAGGED_VERIFY_MODE"] == "static"
