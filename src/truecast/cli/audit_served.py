"""``truecast audit --server URL --reference CKPT|URL --corpus FILE``: what a deployment costs in nats per token."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from truecast.checkpoint.writer import write_file
from truecast.cli.options import add_key, key_of, needing
from truecast.cli.output import REPORT_EVERY_S, positive, print_result, progress, say, table
from truecast.errors import UsageError
from truecast.report.audit_page import render_audit_page
from truecast.report.audit_served import MEASURES, facts, verdict
from truecast.report.words import figure, percent
from truecast.serve.server_info import server_info
from truecast.serve.smoke.connect import connect

if TYPE_CHECKING:
    from truecast.audit.served_client import Server

PAGE = "audit.html"
TOP, CONCURRENCY = 20, 4
PATIENCE_S = 30.0
_NOT_HERE = ("ref", "cand", "activations", "kv", "floor_seeds", "force", "against")
_ONLY_HERE = ("reference", "native", "top", "concurrency", "api_key_env")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what goes with ``--server``, and that itself."""
    group = parser.add_argument_group("the candidate as a running server")
    group.add_argument("--server", metavar="URL", help="the server to audit: SGLang, vLLM or truecast serve-reference")
    group.add_argument(
        "--reference", metavar="CKPT|URL", help="the reference: its checkpoint, or a server of the native weights"
    )
    group.add_argument(
        "--native", metavar="URL", help="with a checkpoint: a server of the native weights, for the noise floor"
    )
    group.add_argument(
        "--top", type=positive, metavar="K", help=f"most probable tokens to ask for at a position (default: {TOP})"
    )
    group.add_argument("--concurrency", type=positive, metavar="N", help=f"requests at a time (default: {CONCURRENCY})")
    add_key(parser)


def refuse_without_server(args: argparse.Namespace) -> None:
    """Raises: UsageError for an option that needs ``--server``."""
    if given := _given(args, _ONLY_HERE):
        raise UsageError(f"{given} goes with --server URL")


def run(args: argparse.Namespace) -> int:
    """Ask the servers, print the figures, write the page."""
    if given := _given(args, _NOT_HERE):
        raise UsageError(f"{given} does not go with --server")
    if args.reference is None:
        raise UsageError("--server needs --reference: a checkpoint, or the address of a server of the native weights")
    key = key_of(args)
    with needing("serve", "audit --server"):
        from truecast.audit.served import audit_server, is_address
        from truecast.audit.served_document import ServedOptions
    if args.native is not None and is_address(args.reference):
        raise UsageError("--native goes with a checkpoint as --reference: a server is asked twice for its own floor")
    options = ServedOptions(
        top=args.top or TOP,
        at_once=args.concurrency or CONCURRENCY,
        limit=args.limit,
        device=args.device,
        memory=args.memory,
        command=sys.argv[1:],
    )
    with progress(args) as report:
        document = audit_server(
            args.server,
            args.reference,
            args.native,
            args.corpus,
            args.out,
            options,
            lambda url: _server(url, key),
            _told(args),
            report,
        )
    if args.out is not None:
        write_file(args.out / PAGE, render_audit_page(document).encode())
    print_result(args, document, lambda console: _render(console, document, args.out))
    return 0


def ends(interval: Sequence[float] | None, words: Any = figure) -> str:
    """``0.01 to 0.02``; empty without an interval."""
    return f"{words(interval[0])} to {words(interval[1])}" if interval else ""


def _given(args: argparse.Namespace, names: Sequence[str]) -> str:
    """The first of these that the command line gives, as it is written there; empty if none is."""
    for name in names:
        if getattr(args, name) not in (None, False):
            return name.upper() if name in ("ref", "cand") else f"--{name.replace('_', '-')}"
    return ""


def _server(url: str, key: str) -> Server:
    """What the server at ``url`` says of itself. Raises: InputError."""
    from truecast.audit.served_client import Server

    asked, _ = connect(url, None, key, PATIENCE_S)
    told = server_info(url, key=key, seconds=PATIENCE_S)
    return Server(
        asked.base, asked.root, told.engine, told.model, told.version, asked.context, dict(told.arguments), key
    )


def _told(args: argparse.Namespace) -> Any:
    last = time.monotonic()

    def told(side: str, done: int, total: int) -> None:
        nonlocal last
        if not args.quiet and time.monotonic() - last >= REPORT_EVERY_S:
            last = time.monotonic()
            say(f"{side}: {done:,} of {total:,} documents")

    return told


def _render(console: Console, document: Mapping[str, Any], out: Path | None) -> None:
    for warning in document["warnings"]:
        console.print(f"warning  {warning}")
    console.print(verdict(document))
    columns = ("nats per token", ">server", "95% interval", ">floor", ">excess", "95% interval")
    console.print(table("", columns, _measures(document)))
    console.print("")
    for name, words in facts(document):
        console.print(f"{name:22}{words}")
    if out is not None:
        console.print(f"page  {out / PAGE}")


def _measures(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, words in MEASURES.items():
        measure = document["measures"][name]
        cand, floor, excess = (measure[side] for side in ("candidate", "floor", "excess"))
        yield (
            words,
            "unknown" if cand is None else figure(cand["mean"]),
            "" if cand is None else ends(cand["interval"]),
            "" if floor is None else figure(floor["mean"]),
            "" if excess is None else figure(excess["mean"]),
            "" if excess is None else ends(excess["interval"]),
        )
    top1 = document["top1"]
    yield "same first choice", percent(top1["agreement"]), ends(top1["interval"], percent), "", "", ""
    ratio = document["perplexity"]
    if ratio["ratio"] is not None:
        yield (
            "perplexity ratio",
            figure(ratio["ratio"], 5),
            ends(ratio["ratio_interval"], lambda x: figure(x, 5)),
            "",
            "",
            "",
        )
