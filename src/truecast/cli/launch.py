"""``truecast launch CKPT --topology T``: every flag and variable for serving a checkpoint, each with its reason."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from truecast.checkpoint.source import open_checkpoint
from truecast.cli.launch_run import add_run_arguments, check_run_arguments, start, write
from truecast.cli.output import gigabytes, positive, print_result, table
from truecast.errors import UsageError
from truecast.report.words import counted
from truecast.serve.forecast.speed import Forecast
from truecast.serve.installed import Installation, find_installation
from truecast.serve.launch.draft import read_draft
from truecast.serve.launch.plan import PROFILES, LaunchPlan, plan_launch
from truecast.serve.launch.router import router_words
from truecast.serve.launch.shell import command_lines, export_lines
from truecast.serve.launch.versions import NEWEST
from truecast.serve.stored_model import stored_model
from truecast.serve.topology import read_topology


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("src", metavar="CKPT", help="folder, .safetensors file or fsspec URL")
    parser.add_argument(
        "--topology", required=True, metavar="T", help="GPU:NODESxGPUS such as gh200:8x4, or a JSON file that says so"
    )
    parser.add_argument("--profile", choices=PROFILES, default=PROFILES[0], help="many streams, or few and fast ones")
    parser.add_argument("--draft", metavar="PATH", help="draft model for speculative decoding: a folder or owner/name")
    parser.add_argument("--replicas", type=positive, default=1, metavar="N", help="copies to divide the GPUs among")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="let SGLang run the Python files of the checkpoint"
    )
    release = parser.add_mutually_exclusive_group()
    release.add_argument(
        "--sglang", metavar="VERSION", help=f"release of SGLang (default: the one here, else {NEWEST})"
    )
    release.add_argument("--site-packages", type=Path, metavar="DIR", help="folder with the SGLang that will serve")
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan and print; write and start as asked for."""
    topology = read_topology(args.topology)
    nodes = check_run_arguments(args, topology.nodes)
    draft = read_draft(args.draft) if args.draft is not None else None
    found = _installation(args)
    plan = plan_launch(
        stored_model(open_checkpoint(args.src)),
        topology,
        version=NEWEST if args.sglang is None else args.sglang,
        installation=found,
        profile=args.profile,
        draft=draft,
        replicas=args.replicas,
        trust_remote_code=args.trust_remote_code,
    )
    files = write(args, plan)
    if args.by is not None:
        if not args.json:  # its one document comes once the servers answer
            print_result(args, {}, lambda console: _render(console, plan, files))
        return start(args, plan, nodes, lambda urls: _show_running(args, plan, urls))
    document = plan.document() | {"files": [str(path) for path in files]}
    print_result(args, document, lambda console: _render(console, plan, files))
    return 0


def _show_running(args: argparse.Namespace, plan: LaunchPlan, urls: list[str]) -> None:
    document = plan.document() | {"urls": urls}
    router = shlex.join([*router_words(), *(url.removesuffix("/v1") for url in urls)]) if plan.replicas > 1 else ""

    def render(console: Console) -> None:
        console.print(f"ready: {', '.join(urls)}")
        if router:
            console.print(f"one address for all: {router}")

    print_result(args, document | ({"router": router} if router else {}), render)


def _installation(args: argparse.Namespace) -> Installation | None:
    if args.sglang is not None:
        return None
    found = find_installation(args.site_packages)
    if found is None and args.site_packages is not None:
        raise UsageError("holds no SGLang", where=str(args.site_packages), fix="name the folder that holds sglang/")
    return found


def _render(console: Console, plan: LaunchPlan, files: Sequence[Path]) -> None:
    if plan.nodes_per_replica > 1:
        last = plan.nodes_per_replica - 1
        console.print(f"# on every node, with NODE_RANK from 0 to {last} and HEAD, the address of node 0")
    for line in export_lines(plan):
        console.print(line)
    for replica in range(plan.replicas if plan.replicas_per_node > 1 else 1):
        if plan.replicas_per_node > 1:
            console.print(f"# replica {replica}, on node {plan.node_of(replica)}")
        for line in command_lines(plan, replica):
            console.print(line)
    rows = [("setting", "why"), *((s.name, s.why) for s in (*plan.environment, *plan.arguments))]
    console.print()
    width = max(len(name) for name, _ in rows)
    for name, why in rows:
        console.print(f"{name:{width}}  {why}")
    console.print(f"\nSGLang {plan.version}, {plan.profile}, {_where(plan)}")
    _render_memory(console, plan)
    time = plan.ready
    console.print(f"ready after {time.seconds / 60:.0f} minutes ({time.low / 60:.0f} to {time.high / 60:.0f})")
    for reason in time.reasons:
        console.print(f"- {reason}")
    if plan.forecast is not None:
        _render_speed(console, plan.forecast)
    for note in plan.notes:
        console.print(f"- {note}")
    for path in files:
        console.print(f"wrote {path}")


def _where(plan: LaunchPlan) -> str:
    one = counted(plan.tp, "GPU") + (f" on {plan.nodes_per_replica} nodes" if plan.nodes_per_replica > 1 else "")
    if plan.replicas == 1:
        return f"one replica on {one} of {plan.topology}"
    if plan.nodes_per_replica > 1:
        one += ", each with its own head: run the command on the nodes of each, with NODE_RANK from 0"
    return f"{plan.replicas} replicas of {one}, of {plan.topology}"


def _render_memory(console: Console, plan: LaunchPlan) -> None:
    fit = plan.fit
    parts = [(name, gigabytes(size)) for name, size in fit.parts.items() if size]
    rows = [*parts, ("activations, graphs", gigabytes(fit.free)), ("of", gigabytes(fit.total))]
    console.print()
    console.print(table("memory of each GPU", ("part", ">size"), rows))
    console.print()


def _render_speed(console: Console, speed: Forecast) -> None:
    console.print(
        f"forecast: {speed.per_stream:.1f} tokens/s a stream ({speed.low:.1f} to {speed.high:.1f}), {speed.aggregate:,.0f}"
        f" in all; first tokens within {speed.first_token:.1f} s if all streams begin at once"
    )
    for reason in speed.reasons:
        console.print(f"- {reason}")
