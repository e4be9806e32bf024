"""``setup.sh`` and ``node.sh``: judged by bash and shellcheck, and run."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.serve.launch.conftest import DSPARK, Launch, Released
from tests.serve.launch.tools import judge
from truecast.checkpoint.source import open_checkpoint
from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.plan import plan_launch
from truecast.serve.launch.scripts import node_script, repository, setup_script
from truecast.serve.launch.setting import Setting
from truecast.serve.stored_model import stored_model
from truecast.serve.topology import read_topology

HOSTILE = ["a; rm -rf $HOME", "$(touch oops)", "`touch oops`", 'it\'s "quoted"', "a\\b*?[x]", "--flag", "naïve ☃ 名"]
NANO = Path(__file__).parents[3] / "examples" / "nano_k3" / "checkpoint"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, environment: Mapping[str, str]) -> Run:
    """Run a script in a folder of its own, where ``sglang`` notes its words and ``$HOME`` holds something."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    home = tmp_path / "home"
    (home / "kept").mkdir(parents=True)
    (bin_ / "sglang").write_text(f'#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done >{tmp_path}/words\n')
    (bin_ / "sglang").chmod(0o755)
    path = f"{bin_}:{Path(sys.executable).parent}:/usr/bin:/bin"

    def run(text: str, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.sh"
        script.write_text(text)
        env = {**environment, "PATH": path, "HOME": str(home), "PIP_NO_INDEX": "1", **extra}
        return subprocess.run(
            ["bash", script, *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )

    return run


def plans(launch: Launch) -> list[LaunchPlan]:
    return [
        launch("w4afp8", "gh200:8x4", draft=DSPARK),
        launch("mxfp4", "h200:8x8", replicas=2),
        launch("nvfp4", "b200:2x8"),
        launch("mxfp4", "b300:1x8"),
        launch("mxfp4", "b300:2x16", replicas=4),
    ]


def test_bash_and_shellcheck_find_nothing(launch: Launch, tmp_path: Path) -> None:
    for number, plan in enumerate(plans(launch)):
        for name, text in (("node", node_script(plan)), ("setup", setup_script(plan))):
            path = tmp_path / f"{name}-{number}.sh"
            path.write_text(text)
            judge(path)


def test_nodes_run_the_plans_command(launch: Launch, run: Run, tmp_path: Path) -> None:
    plan = launch("w4afp8", "gh200:8x4", draft=DSPARK)
    for rank in ("0", "7"):
        done = run(node_script(plan), rank, "127.0.0.1")
        assert (done.returncode, done.stderr) == (0, "")
        words = (tmp_path / "words").read_text().splitlines()
        assert ["sglang", *words] == plan.command(rank, "127.0.0.1")


def test_replicas_that_share_a_node_differ_in_port_and_gpus(launch: Launch, run: Run, tmp_path: Path) -> None:
    plan = launch("mxfp4", "b300:2x16", replicas=4)
    assert plan.replicas_per_node == 2
    for replica in range(4):
        assert run(node_script(plan), "0", "127.0.0.1", str(replica)).returncode == 0
        words = (tmp_path / "words").read_text().splitlines()
        later = {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}
        assert int(later["--port"]) == plan.port_of(replica)
        assert later.get("--base-gpu-id", "0") == str(replica % 2 * 8)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_words(name: str, released: Released, run: Run, tmp_path: Path) -> None:
    model = replace(released.w4afp8, location=f"/data/{name}", name=name)
    plan = plan_launch(model, read_topology("gh200:8x4"), version="0.5.20")
    assert run(node_script(plan), "0", "127.0.0.1").returncode == 0
    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--model-path") + 1] == f"/data/{name}"
    (tmp_path / "sglang-0.5.20.dist-info").mkdir()
    (tmp_path / "sglang-0.5.20.dist-info" / "METADATA").write_text("Name: sglang\nVersion: 0.5.20\n")
    here = setup_script(plan).replace("= aarch64 ]", f"= {platform.machine()} ]")
    here = here.replace("python3 -m pip", ": python3 -m pip")
    done = run(here, "0", "127.0.0.1", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, f"setup.sh: the checkpoint is not here: /data/{name}\n")
    assert (tmp_path / "home" / "kept").exists()
    assert not (tmp_path / "oops").exists()
    for script in (node_script(plan), setup_script(plan)):
        (tmp_path / "judged.sh").write_text(script)
        judge(tmp_path / "judged.sh", "--exclude=SC2016")  # a name with $ in single quotes is meant so


def test_a_head_known_by_a_loopback_address_is_refused(launch: Launch, run: Run) -> None:
    done = run(node_script(launch("mxfp4", "h200:4x8")), "0", "localhost")
    assert done.returncode == 2
    assert "node.sh: localhost is 127.0.0.1 here, which no other node reaches" in done.stderr


def test_no_interface_stops_the_node(launch: Launch, run: Run, tmp_path: Path) -> None:
    done = run(node_script(launch("mxfp4", "h200:4x8")), "0", "127.0.0.1", SGLANG_HOST_IP="192.0.2.1")
    assert done.returncode != 0
    assert not (tmp_path / "words").exists()


def test_usage(launch: Launch, run: Run) -> None:
    several, one = launch("mxfp4", "h200:4x8"), launch("mxfp4", "b300:1x8")
    assert "usage: node.sh NODE_RANK HEAD" in run(node_script(several), "0").stderr
    assert "usage: setup.sh NODE_RANK HEAD" in run(setup_script(several)).stderr
    assert "usage" not in run(setup_script(one)).stderr


def test_check_asks_the_doctor_about_the_same_launch(run: Run) -> None:
    model = stored_model(open_checkpoint(NANO))
    plan = plan_launch(model, read_topology("h200:1x1"), version="0.5.20")
    done = run(node_script(plan), "--check", "0", "127.0.0.1")
    assert done.returncode in (0, 1), done.stderr
    assert "sglang." in done.stdout
    wrong = replace(plan, arguments=(*plan.arguments, Setting("--tp-size", "3", "")))
    done = run(node_script(wrong), "--check", "0", "127.0.0.1")
    assert done.returncode == 1
    assert "FAIL" in done.stdout


def test_another_architecture_or_release_is_refused(launch: Launch, run: Run, tmp_path: Path) -> None:
    other = "h200:4x8" if platform.machine() == "aarch64" else "gh200:8x4"
    done = run(
        setup_script(launch("w4afp8", "gh200:8x4") if other == "gh200:8x4" else launch("mxfp4", other)), "0", "h"
    )
    assert (done.returncode, "machines" in done.stderr) == (2, True)
    installed = tmp_path / "sglang-0.5.17.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.17\n")
    text = setup_script(launch("mxfp4", "b300:1x8")).replace("= x86_64 ]", f"= {platform.machine()} ]")
    done = run(text, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "has SGLang 0.5.17, the launch is for 0.5.20: take lmsysorg/sglang:v0.5.20" in done.stderr


def test_what_is_set_up(launch: Launch, released: Released) -> None:
    text = setup_script(launch("w4afp8", "gh200:8x4", draft=DSPARK))
    assert "hf download RadixArk/Kimi-K3-DSpark --revision main" in text
    assert "[ -e /data/Kimi-K3-W4AFP8 ]" in text
    assert "compute_90a" in text
    assert "sm_90a" not in setup_script(launch("mxfp4", "gh200:8x4"))
    assert "sm_90a" not in setup_script(launch("w4afp8", "h200:4x8"))
    hub = replace(released.mxfp4, location="hf://moonshotai/Kimi-K3")
    text = setup_script(plan_launch(hub, read_topology("h200:4x8"), version="0.5.20"))
    assert "hf download moonshotai/Kimi-K3 --revision main" in text
    assert text.rstrip().splitlines()[-1].endswith('bash "$here/node.sh" --check "$1" "$2"')


def test_repositories() -> None:
    assert repository("hf://owner/name@abc") == ("owner/name", "abc")
    assert repository("owner/name") == ("owner/name", None)
    assert repository("/data/name") is None
    assert repository("s3://bucket/name") is None
