"""Starting every node over ssh, and never leaving one behind.

Each node's shell reads its program, and then a lifeline, from the standard input of its ssh connection. Once that ends,
for whatever reason (Ctrl-C here, this process killed, the connection lost), it stops what it has started. ssh is the
user's own, with the user's configuration and known hosts; it never asks for a password.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from truecast.errors import UsageError
from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.nodes import Node
from truecast.serve.launch.scripts import node_script

SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15")
GRACE_S = 10
"""Seconds that a node's processes have between SIGTERM and SIGKILL."""
LAST_LINES = 20
LONGEST_LINE = 4096

Log = Callable[[str, str], None]
"""Told a node's name and one line of its output."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The process of the node that ended first, with ssh's exit code and its last lines."""

    node: str
    code: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        what = f"{self.node} ended with exit code {self.code}"
        if self.code == 255:
            what = f"{self.node}: no connection, or it broke"
        return "; all others were stopped; its last lines:\n  ".join([what, "\n  ".join(self.lines) or "(none)"])


@dataclass(slots=True)
class _Running:
    name: str
    process: subprocess.Popen[str]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))


def run_ssh(plan: LaunchPlan, nodes: Sequence[Node], log: Log, ready: Callable[[list[str]], None]) -> Ended:
    """Start all nodes, call ``ready`` with the replicas' URLs once each answers, return when one node's process ends.

    All nodes are stopped on the way out, also where an exception such as KeyboardInterrupt ends it.
    Raises: UsageError where there is no ssh.
    """
    heads = [_address(nodes[plan.node_of(replica)]) for replica in range(plan.replicas)]
    urls = [f"http://{head}:{plan.port_of(replica)}/v1" for replica, head in enumerate(heads)]
    sign = secrets.token_hex(16)
    heard: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    started: list[_Running] = []
    try:
        for replica, head in enumerate(heads):
            for rank in range(plan.nodes_per_replica):
                node = nodes[plan.node_of(replica, rank)]
                program = remote_program(plan, rank, head, replica, sign)
                name = f"{node} (replica {replica})" if plan.replicas_per_node > 1 else str(node)
                started.append(_Running(name, _start(node, program)))
                threading.Thread(target=_read, args=(len(started) - 1, started[-1], heard), daemon=True).start()
        return _follow(started, heard, sign, log, lambda: ready(urls), plan.replicas)
    finally:
        _stop(started, heard, sign, log)


def remote_program(plan: LaunchPlan, rank: int, head: str, replica: int, sign: str) -> str:
    """What a node's bash reads: it starts ``node.sh`` in a process group of its own and stops that group at the end.

    The first node of a replica says ``sign`` once its server answers.
    """
    watch = f"answers {plan.port_of(replica)} {sign} &" if rank == 0 else ":"
    port = plan.port_of(replica)
    free = f"is_free {port}" if rank == 0 else ":"
    place = shlex.join([str(rank), head, str(replica)])
    return f"""\
script={shlex.quote(node_script(plan))}
answers() {{
  local code
  while true; do
    code=
    if {{ exec 4<>"/dev/tcp/127.0.0.1/$1"; }} 2>/dev/null; then
      printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&4
      read -r -t 20 _ code _ <&4
      exec 4>&-
    fi
    [ "$code" = 200 ] && break
    sleep 0.5
  done
  echo "$2"
}}
is_free() {{ # or another server's answer would be taken for this one's
  if {{ exec 4<>"/dev/tcp/127.0.0.1/$1"; }} 2>/dev/null; then
    echo "port $1 of this machine is taken by another program" >&2
    exit 98
  fi
}}
end() {{
  kill -TERM -- "-$1"
  for ((tenths = 0; tenths < {GRACE_S * 10}; tenths++)); do
    kill -0 -- "-$1" || return
    sleep 0.1
  done
  kill -KILL -- "-$1"
}} 2>/dev/null
main() {{
  {free}
  exec 3<&0
  set -m
  bash -c "$script" node.sh {place} </dev/null 3<&- &
  node=$!
  {{ cat <&3 >/dev/null; end "$node"; }} >/dev/null 2>&1 &
  lifeline=$!
  {watch}
  {{ wait "$node"; }} 2>/dev/null # says nothing of its own about the signal that ended it
  code=$?
  kill -KILL -- $(jobs -p | sed s/^/-/) 2>/dev/null
  end "$node"
  exit "$code"
}}
main
"""


def _address(node: Node) -> str:
    """The host behind a name of ``~/.ssh/config``, by which other nodes reach it."""
    try:
        done = subprocess.run([SSH[0], "-G", str(node)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("there is no ssh here", fix="install OpenSSH's client") from None
    found = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("hostname ")]
    return found[0] if found else node.host


def _start(node: Node, program: str) -> subprocess.Popen[str]:
    """In a session of its own: Ctrl-C is for this process, which then stops the nodes in order."""
    process = subprocess.Popen(
        [*SSH, str(node), "exec bash -s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    threading.Thread(target=_send, args=(process, program), daemon=True).start()
    return process


def _send(process: subprocess.Popen[str], program: str) -> None:
    """In a thread: a host that does not answer takes nothing."""
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # gone before it was read; its output says why
        process.stdin.write(program)
        process.stdin.flush()


def _read(index: int, running: _Running, heard: queue.SimpleQueue[tuple[int, str | None]]) -> None:
    assert running.process.stdout is not None
    while line := running.process.stdout.readline(LONGEST_LINE):
        heard.put((index, line.rstrip("\n")))
    heard.put((index, None))


def _follow(
    started: Sequence[_Running],
    heard: queue.SimpleQueue[tuple[int, str | None]],
    sign: str,
    log: Log,
    ready: Callable[[], None],
    replicas: int,
) -> Ended:
    answering = 0
    while True:
        index, line = heard.get()
        running = started[index]
        if line is None:
            return Ended(running.name, running.process.wait(), tuple(running.last))
        if line == sign:
            answering += 1
            if answering == replicas:
                ready()
        else:
            running.last.append(line)
            log(running.name, line)


def _stop(started: Sequence[_Running], heard: queue.SimpleQueue[tuple[int, str | None]], sign: str, log: Log) -> None:
    """End the lifelines, wait for the nodes, and at last end ssh itself."""
    for running in started:
        if running.process.stdin is not None:
            with contextlib.suppress(OSError):
                running.process.stdin.close()
    until = time.monotonic() + GRACE_S + 5
    while any(r.process.poll() is None for r in started) and time.monotonic() < until:
        try:
            index, line = heard.get(timeout=0.1)
        except queue.Empty:
            continue
        if line is not None and line != sign:
            log(started[index].name, line)
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()
