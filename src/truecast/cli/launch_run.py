"""What ``truecast launch`` does with a plan besides printing it: files in a folder, nodes over ssh, a Slurm job."""

from __future__ import annotations

import argparse
import gc
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from truecast.cli.output import print_error, say
from truecast.errors import UsageError
from truecast.serve.launch.folder import write_launch
from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.nodes import Node, read_nodes
from truecast.serve.launch.run import run_ssh
from truecast.serve.launch.run_slurm import JobEnded, follow, submit

Ready = Callable[[list[str]], None]
"""Told the URLs of all replicas once they answer."""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--out``, ``--nodes-file``, and ``--run`` beside ``--print``."""
    parser.add_argument("--out", type=Path, metavar="DIR", help="write set-up, node, Slurm and Kubernetes files there")
    parser.add_argument(
        "--nodes-file", type=Path, metavar="FILE", help="for --run ssh: [user@]host lines, node 0 first"
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--print", action="store_true", help="print environment and command; nothing is started (default)")
    way.add_argument(
        "--run",
        dest="by",
        choices=("ssh", "slurm"),
        help="start the nodes of --nodes-file and stay until Ctrl-C, or submit a job",
    )


def check_run_arguments(args: argparse.Namespace, nodes: int) -> Sequence[Node]:
    """The nodes that ``--run ssh`` starts. Raises: UsageError for options that do not go together."""
    if args.by == "ssh" and args.nodes_file is None:
        raise UsageError("--run ssh starts the hosts of a file", fix="name it with --nodes-file")
    if args.by != "ssh" and args.nodes_file is not None:
        raise UsageError("--nodes-file is for --run ssh", fix="leave it out, or add --run ssh")
    if args.by == "slurm" and args.out is None:
        raise UsageError("--run slurm submits a file of a folder that the nodes see", fix="name it with --out")
    return read_nodes(args.nodes_file, nodes) if args.nodes_file is not None else ()


def write(args: argparse.Namespace, plan: LaunchPlan) -> list[Path]:
    """The files of ``--out``, written; none without it."""
    return write_launch(plan, args.out) if args.out is not None else []


def start(args: argparse.Namespace, plan: LaunchPlan, nodes: Sequence[Node], ready: Ready) -> int:
    """Start the launch as ``--run`` says. Returns 1 where it ended by itself, 0 on SIGTERM or for a job that serves."""
    if args.by == "ssh":
        return _ssh(args, plan, nodes, ready)
    return _slurm(args, plan, ready)


def _ssh(args: argparse.Namespace, plan: LaunchPlan, nodes: Sequence[Node], ready: Ready) -> int:
    answering = False
    gc.enable()  # it stays for long

    def all_ready(urls: list[str]) -> None:
        nonlocal answering
        answering = True
        ready(urls)

    try:
        with _terminable():
            ended = run_ssh(
                plan, nodes, _quiet if args.quiet else lambda node, line: say(f"[{node}] {line}"), all_ready
            )
    except _Terminated:
        return 0
    except KeyboardInterrupt:
        if not answering:
            raise
        say(f"truecast {args.verb}: interrupted; every node was stopped")  # its one JSON document is out already
        return 130
    _report(args, str(ended), printed=answering)
    return 1


def _slurm(args: argparse.Namespace, plan: LaunchPlan, ready: Ready) -> int:
    job = submit(args.out)
    say(f"job {job} is submitted; `scancel {job}` ends it, Ctrl-C here does not")
    found = follow(args.out, job, plan.replicas, (lambda _: None) if args.quiet else say)
    if isinstance(found, JobEnded):
        _report(args, str(found), printed=False)
        return 1
    ready(found)
    return 0


def _report(args: argparse.Namespace, text: str, *, printed: bool) -> None:
    """Line by line, as the lines of a log must not run together; the one JSON document only once."""
    first, *rest = text.split("\n")
    if printed:
        say(f"truecast {args.verb}: {first}")
    else:
        print_error(args, first, 1)
    for line in rest:
        say(line)


def _quiet(node: str, line: str) -> None:
    pass


class _Terminated(Exception):
    pass


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM unwinds, so that nodes are stopped."""

    def unwind(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
