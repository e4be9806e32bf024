"""OpenSSH's own server, on a port of this machine, with keys made for one test run; and a stand-in for ``sglang``.

SGLang needs GPUs. In its place the head serves nano-K3 with truecast's reference server, and further ranks wait.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
WANTED = "these tests run OpenSSH's server: apt-get install openssh-server (.ci/run does)"


@dataclass(frozen=True)
class Cluster:
    """``environment``: of a process whose ``ssh`` reaches ``node0`` and ``node1``. ``stand_in``: folder of ``sglang``."""

    folder: Path
    environment: Mapping[str, str]
    port: int

    def nodes_file(self, *lines: str) -> Path:
        path = self.folder / "nodes"
        path.write_text("\n".join(lines or ("# the head", "node0", "node1  # and another")) + "\n")
        return path

    def sglang(self, text: str) -> None:
        """What ``sglang serve ...`` does on the nodes: bash, with ``$rank`` and ``$port`` set, pids noted in ``pids``."""
        script = self.folder / "bin" / "sglang"
        script.write_text(f"""#!/usr/bin/env bash
rank=0
for ((i = 1; i <= $#; i++)); do
  next=$((i + 1))
  case "${{!i}}" in
    --node-rank) rank=${{!next}} ;;
    --port) port=${{!next}} ;;
  esac
done
echo $$ >>{self.folder}/pids
env >{self.folder}/env.$rank
printf '%s\\n' "$@" >{self.folder}/arguments.$rank
{text}
""")
        script.chmod(0o755)
        (self.folder / "pids").unlink(missing_ok=True)

    def alive(self) -> list[int]:
        """Processes of the stand-in that still run, and their process groups' others."""
        noted = (self.folder / "pids").read_text().split()
        return [int(pid) for pid in noted if Path(f"/proc/{pid}").exists() and "Z" not in _state(int(pid))]

    def gone_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self.alive():
                return True
            time.sleep(0.05)
        return False


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@contextmanager
def cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Serve ssh until the context ends."""
    assert SSHD is not None, WANTED
    folder.chmod(stat.S_IRWXU)
    (folder / "bin").mkdir()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = free_port()
    path = f"{folder}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    (folder / "sshd_config").write_text(f"""\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
PermitRootLogin prohibit-password
SetEnv HOME={folder} PATH={path} PYTHONPATH={environment["PYTHONPATH"]}
""")
    key = (folder / "host.pub").read_text().split()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
    (folder / "ssh_config").write_text(f"""\
Host node0 node1
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
""")
    ssh = folder / "bin" / "ssh"  # the real one, with these settings in place of the user's
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    ssh.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None  # as Debian's service does
    command = [SSHD, "-D", "-e", "-f", folder / "sshd_config"]
    with (folder / "sshd.log").open("w") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            _answering(port, server, folder / "sshd.log")
            yield Cluster(folder, {**environment, "PATH": f"{folder}/bin:{environment['PATH']}"}, free_port())
        finally:
            server.terminate()


def _answering(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(100):
        assert server.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
