"""``job.slurm``: judged by bash and shellcheck; its tasks are run as Slurm would start them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.serve.launch.conftest import Launch
from tests.serve.launch.tools import judge
from truecast.serve.launch.slurm import job_script

SHAPES = [("h200:4x8", 1), ("h200:8x8", 2), ("b300:1x8", 1), ("b300:2x16", 4)]


@pytest.mark.parametrize(("topology", "replicas"), SHAPES)
def test_bash_and_shellcheck_find_nothing(topology: str, replicas: int, launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "job.slurm"
    path.write_text(job_script(launch("mxfp4", topology, replicas=replicas)))
    judge(path)


def test_what_is_asked_of_slurm(launch: Launch) -> None:
    options = dict(
        re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", job_script(launch("mxfp4", "h200:8x8", replicas=2)), re.M)
    )
    assert (options["nodes"], options["ntasks-per-node"], options["gpus-per-node"]) == ("8", "1", "8")
    shared = dict(
        re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", job_script(launch("mxfp4", "b300:2x16", replicas=4)), re.M)
    )
    assert (shared["nodes"], shared["ntasks-per-node"], shared["gpus-per-node"]) == ("2", "2", "16")


@pytest.mark.parametrize(("topology", "replicas"), SHAPES)
def test_each_task_finds_its_place(topology: str, replicas: int, launch: Launch, tmp_path: Path) -> None:
    plan = launch("mxfp4", topology, replicas=replicas)
    (task,) = re.findall(r"bash -c '\n(.*?)\n  ' &", job_script(plan), re.S)
    (tmp_path / "node.sh").write_text('echo "$@"\n')
    hosts = [f"host{number}" for number in range(plan.topology.nodes)]
    for replica in range(plan.replicas):
        for rank in range(plan.nodes_per_replica):
            node = plan.node_of(replica, rank)
            place = {"SLURM_NODEID": str(node), "SLURM_LOCALID": str(replica % plan.replicas_per_node)}
            done = subprocess.run(
                ["bash", "-c", task], env={**os.environ, "TRUECAST_HOSTS": " ".join(hosts), **place}, cwd=tmp_path,
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            expected = [str(rank), hosts[plan.node_of(replica)]]
            assert done.stdout.split() == expected + ([str(replica)] if plan.replicas_per_node > 1 else [])


def test_the_heads_that_are_waited_for(launch: Launch) -> None:
    for topology, replicas in SHAPES:
        plan = launch("mxfp4", topology, replicas=replicas)
        (line,) = re.findall(r"^  (head=.* port=.*)$", job_script(plan), re.M)
        hosts = " ".join(f"host{number}" for number in range(plan.topology.nodes))
        for replica in range(replicas):
            text = f'hosts=({hosts}); replica={replica}; {line}; echo "$head $port"'
            done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
            assert done.stdout.split() == [f"host{plan.node_of(replica)}", str(plan.port_of(replica))]
