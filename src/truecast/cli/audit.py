"""``truecast audit REF CAND --corpus FILE``: what the cast costs in nats per token.

With ``--server URL`` the candidate is what a running server answers: :mod:`truecast.cli.audit_served`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from truecast.audit.kinds import ACTIVATIONS, KV
from truecast.audit.paired import paired_folders, scored_document
from truecast.checkpoint.writer import write_file
from truecast.cli import audit_served
from truecast.cli.audit_served import ends
from truecast.cli.options import add_corpus, add_memory, add_model_device, needing
from truecast.cli.output import gigabytes, print_result, progress, table
from truecast.errors import UsageError
from truecast.report.audit_page import render_audit_page, verdict
from truecast.report.audit_paired import paired_verdict
from truecast.report.words import counted, figure, percent

PAGE, RESULT = audit_served.PAGE, "audit.json"
SHOWN_LAYERS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("ref", nargs="?", metavar="REF", help="the reference checkpoint")
    parser.add_argument("cand", nargs="?", metavar="CAND", help="the candidate: the same model in another form")
    add_corpus(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="keep positions, layers and a page here, and go on from here after a stop",
    )
    add_model_device(parser)
    add_memory(parser)
    parser.add_argument(
        "--activations", choices=ACTIVATIONS, help="what serving rounds the candidate's inputs to (default: none)"
    )
    parser.add_argument("--kv", choices=KV, help="what serving rounds the candidate's KV cache to (default: none)")
    parser.add_argument(
        "--floor-seeds", type=_seeds, metavar="N", help="runs of the noise floor, 0 for none (default: 3)"
    )
    parser.add_argument("--force", action="store_true", help="compute both sides, even where their weights are equal")
    parser.add_argument(
        "--against", type=Path, metavar="DIR", help="another candidate's --out: the difference, document by document"
    )
    audit_served.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Audit, print the figures, write the page."""
    if args.server is not None:
        return audit_served.run(args)
    audit_served.refuse_without_server(args)
    if args.ref is None or args.cand is None:
        raise UsageError("REF and CAND are needed, or --server URL --reference CKPT|URL")
    with needing("torch", args.verb):
        from truecast.audit.audit import audit
        from truecast.audit.options import Options
    if args.against is not None:
        if args.out is None:
            raise UsageError("--against DIR needs --out DIR: the two are compared position by position")
        scored_document(args.against)
    options = Options(
        device=args.device,
        memory=args.memory,
        activations=args.activations or "none",
        kv=args.kv or "none",
        seeds=tuple(range(3 if args.floor_seeds is None else args.floor_seeds)),
        force=args.force,
        limit=args.limit,
    )
    with progress(args) as report:
        document = audit(args.ref, args.cand, args.corpus, args.out, options, report)
    earlier = document.pop("paired", None)  # of a run of this audit that is finished: what it says may have changed
    if args.against is not None:
        document["paired"] = paired_folders(args.out, args.against)
    if args.out is not None and (earlier is not None or args.against is not None):
        write_file(args.out / RESULT, json.dumps(document, indent=1).encode() + b"\n")
    if args.out is not None:
        write_file(args.out / PAGE, render_audit_page(document).encode())
    print_result(args, document, lambda console: _render(console, document, args.out))
    return 0


def _seeds(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _render(console: Console, document: Mapping[str, Any], out: Path | None) -> None:
    corpus, read = document["corpus"], document["read"]
    if (warning := document["kl"].get("warning")) is not None:
        console.print(f"warning  {warning}")
    console.print(verdict(document))
    if (compared := document.get("paired")) is not None:
        console.print(paired_verdict(compared))
    console.print(table("", ("figure", ">value", "95% interval"), _figures(document)))
    if jumps := _jumps(document):
        console.print(table("\nlayers where the error grows most", ("layer", ">error", ">before", ">floor"), jumps))
    scored = f"{corpus['scored']:,} positions of {counted(corpus['documents'], 'document')}"
    console.print(
        f"\n{scored} scored on {document['device']} in {document['dtype']}, {document['seconds']:,.0f} s;"
        f" {gigabytes(read['bytes'])} read of {gigabytes(read['checkpoint_bytes'])}"
    )
    if out is not None:
        console.print(f"page  {out / PAGE}")


def _figures(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    kl = document["kl"]
    yield "KL, nats per token", figure(kl["mean"]), ends(kl.get("interval"))
    if floor := document.get("floor"):
        yield f"noise floor, {counted(len(floor['seeds']), 'seed')}", figure(floor["mean"]), ""
    if excess := document.get("excess"):
        yield "excess over the floor", figure(excess["mean"]), ends(excess["interval"])
    if "p99" in kl:
        yield "median", figure(kl["median"]), ""
        yield "99th percentile", figure(kl["p99"]), ""
        yield "share of the worst 1%", percent(kl["worst_1_percent_share"]), ""
    yield "reverse KL", figure(document["reverse_kl"]["mean"]), ends(document["reverse_kl"].get("interval"))
    top1 = document["top1"]
    yield "same first choice", percent(top1["agreement"]), ends(top1.get("interval"), percent)
    ratio = document.get("perplexity") or {}
    if ratio.get("ratio") is not None:
        yield "perplexity ratio", figure(ratio["ratio"], 5), ends(ratio.get("ratio_interval"), lambda x: figure(x, 5))


def _jumps(document: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The layers after which the stream's relative error is larger than before by most, largest first."""
    layers = document["layers"]
    before = [0.0, *(layer["relative_error"] for layer in layers)][: len(layers)]
    grown = sorted(zip(layers, before, strict=True), key=lambda pair: pair[1] - pair[0]["relative_error"])
    return [
        (
            str(layer["layer"]),
            figure(layer["relative_error"]),
            figure(error),
            "" if layer["floor_error"] is None else figure(layer["floor_error"]),
        )
        for layer, error in grown[:SHOWN_LAYERS]
        if layer["relative_error"] > error
    ]
