"""``truecast launch --run ssh`` through OpenSSH, client and server, on this machine."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import Outcome
from tests.process import Process
from tests.serve.launch.sshd import MISSING, WANTED, Cluster, cluster

NANO = Path(__file__).parents[3] / "examples" / "nano_k3" / "checkpoint"
REFERENCE = f"""
[ "$rank" = 0 ] || exec sleep 1000
exec {sys.executable} -m truecast serve-reference {NANO} --port "$port" --device cpu
"""
LIGHT = """
[ "$rank" = 0 ] || exec sleep 1000
mkdir -p /dev/shm/truecast-$$ && cd /dev/shm/truecast-$$ && touch health
trap 'rm -r /dev/shm/truecast-$$; kill $!' EXIT TERM
python3 -m http.server --bind 127.0.0.1 "$port" & wait
"""
WITH_PORT = """\
import sys
import time
from truecast.serve.launch import plan, run
plan.PORT, run.GRACE_S = int(sys.argv.pop(1)), 2
from truecast.cli.main import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, environment: Mapping[str, str]) -> Iterator[Cluster]:
    if MISSING:
        pytest.skip(WANTED)
    with cluster(tmp_path_factory.mktemp("ssh"), environment) as found:
        yield found


@contextmanager
def launched(
    machines: Cluster, *more: str, topology: str = "h200:2x1", nodes: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """The command itself, on a free port in place of 30000."""
    arguments = ["launch", str(NANO), "--topology", topology, "--sglang", "0.5.20", "--run", "ssh"]
    arguments += ["--nodes-file", str(nodes or machines.nodes_file()), *more]
    command = [sys.executable, "-c", WITH_PORT, str(machines.port), *arguments]
    with Process(
        command, env=machines.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def document(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":
            break
    found = json.loads("".join(lines))
    assert isinstance(found, dict)
    return found


def test_a_server_over_ssh_and_ctrl_c_leaves_nothing_behind(machines: Cluster) -> None:
    machines.sglang(REFERENCE)
    with launched(machines, "--json") as process:
        ready = document(process)
        assert ready["schema"] == "truecast.launch/1"
        assert ready["urls"] == [f"http://127.0.0.1:{machines.port}/v1"]
        body = {"model": "checkpoint", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        answer = httpx.post(f"http://127.0.0.1:{machines.port}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200
        assert len(machines.alive()) == 2
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130
    assert out == ""
    assert "every node was stopped" in err
    assert "Traceback" not in err
    assert machines.alive() == []
    first, second = ((machines.folder / f"arguments.{rank}").read_text().split("\n") for rank in (0, 1))
    differing = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    assert differing == [("0", "1")]
    assert first[first.index("--dist-init-addr") + 1] == "127.0.0.1:20000"  # not its name in ssh's configuration
    for rank in (0, 1):
        lines = (machines.folder / f"env.{rank}").read_text().splitlines()
        assert {"SGLANG_HOST_IP=127.0.0.1", "NCCL_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo"} <= set(lines)


def test_a_node_that_ends_is_named_and_the_others_are_stopped(machines: Cluster) -> None:
    machines.sglang("[ $rank = 1 ] || exec sleep 1000; sleep 1; echo 'CUDA error: \033[31m unhappy'; exit 7")
    with launched(machines, "--json") as process:
        out, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert json.loads(out)["exit_code"] == 1
    assert "node1 ended with exit code 7; all others were stopped" in json.loads(out)["error"]
    assert "[node1] CUDA error: \\x1b[31m unhappy\n" in err
    assert err.endswith("  CUDA error: \\x1b[31m unhappy\n")
    assert machines.alive() == []


def test_a_node_that_ends_after_all_were_ready(machines: Cluster) -> None:
    machines.sglang(LIGHT.replace("exec sleep 1000", "{ sleep 3; exit 9; }"))
    with launched(machines) as process:
        out, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert f"ready: http://127.0.0.1:{machines.port}/v1\n" in out
    assert "node1 ended with exit code 9" in err
    assert machines.alive() == []


def test_replicas_of_one_node(machines: Cluster) -> None:
    machines.sglang(LIGHT)
    one = machines.nodes_file("node0")
    with launched(machines, "--json", "--replicas", "2", topology="h200:1x2", nodes=one) as process:
        ready = document(process)
        urls = [f"http://127.0.0.1:{machines.port + replica}" for replica in (0, 1)]
        assert ready["urls"] == [f"{url}/v1" for url in urls]
        assert str(ready["router"]).endswith(f"--worker-urls {' '.join(urls)}")
        process.terminate()
        assert process.wait(30) == 0
    assert machines.alive() == []


def test_killed_it_leaves_nothing_behind(machines: Cluster) -> None:
    machines.sglang(LIGHT)
    with launched(machines, "--json") as process:
        document(process)
        process.kill()
        process.wait()
    assert machines.gone_within(15)


def test_killed_while_loading_it_leaves_nothing_behind_that_does_not_heed_sigterm(machines: Cluster) -> None:
    machines.sglang("trap '' TERM; (trap '' TERM; sleep 1000) & while true; do sleep 0.2; done")
    with launched(machines, "--quiet") as process:
        while not (machines.folder / "pids").exists() or len(machines.alive()) < 2:
            assert process.poll() is None
        process.kill()
        process.wait()
    assert machines.gone_within(10)


def test_sigterm_stops_the_nodes(machines: Cluster) -> None:
    machines.sglang(LIGHT)
    with launched(machines, "--json", "--quiet") as process:
        document(process)
        process.terminate()
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")
    assert machines.alive() == []


def test_what_does_not_heed_sigterm_is_killed(machines: Cluster) -> None:
    machines.sglang("trap '' TERM; while true; do sleep 0.2; done")
    with launched(machines, "--quiet") as process:
        while not (machines.folder / "pids").exists() or len(machines.alive()) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
    assert machines.gone_within(2)


@pytest.mark.parametrize("changed", [False, True])
def test_an_unknown_or_another_host_key_is_refused_without_a_question(machines: Cluster, changed: bool) -> None:
    machines.sglang(LIGHT)
    known = machines.folder / "known"
    kept = known.read_text()
    other = (machines.folder / "user.pub").read_text().split()[1]
    known.write_text(" ".join([*kept.split()[:-1], other]) + "\n" if changed else "")
    try:
        with launched(machines) as process:
            out, err = process.communicate(timeout=30)
            assert process.returncode == 1
    finally:
        known.write_text(kept)
    assert "ready:" not in out
    assert "no connection, or it broke" in err
    assert "Host key verification failed." in err
    assert ("REMOTE HOST IDENTIFICATION HAS CHANGED" in err) == changed


def test_no_sglang_on_the_nodes(machines: Cluster) -> None:
    machines.sglang("")
    (machines.folder / "bin" / "sglang").unlink()
    with launched(machines) as process:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert "node.sh: no sglang on the PATH of this shell:" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--run", "ssh"], "--run ssh starts the hosts of a file; name it with --nodes-file"),
        (["--nodes-file", "x"], "--nodes-file is for --run ssh"),
        (["--run", "slurm"], "name it with --out"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], message: str, cli: Callable[..., Outcome]) -> None:
    outcome = cli("launch", NANO, "--topology", "h200:2x1", "--sglang", "0.5.20", *options)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_taken_port_is_not_taken_for_a_server(machines: Cluster, tmp_path: Path) -> None:
    """Another program that answers ``/health`` there would be announced as ready."""
    (tmp_path / "health").touch()
    machines.sglang("sleep 1000")
    other = [
        sys.executable,
        "-m",
        "http.server",
        "--bind",
        "127.0.0.1",
        "--directory",
        str(tmp_path),
        str(machines.port),
    ]
    with Process(other, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(machines.port)
            with launched(machines) as process:
                out, err = process.communicate(timeout=60)
        finally:
            server.kill()
    assert process.returncode == 1
    assert "ready:" not in out
    assert f"port {machines.port} of this machine is taken by another program" in err


def _wait_for(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens at {port}")
