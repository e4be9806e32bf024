"""``truecast plan SRC --to FORMAT``: what a conversion would do, and with ``--scan`` whether it would be exact.

``truecast plan SRC --hardware GPU``: which format to convert to, for that GPU.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from truecast.checkpoint.source import open_checkpoint
from truecast.cli import hardware
from truecast.cli.hardware_table import render as render_hardware
from truecast.cli.output import add_jobs, gigabytes, print_result, progress, table
from truecast.cli.target import add_target, target_of
from truecast.convert import Plan, Scan, plan, scan
from truecast.convert.plan import summary
from truecast.convert.scan import scan_bytes
from truecast.errors import UsageError
from truecast.layouts import format_of
from truecast.report.words import counted
from truecast.serve import GPUS, find_gpu

WOULD_REFUSE = 3
SHOWN = 10
"""So many matrices that cannot be exact are named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("src", metavar="SRC", help="folder, .safetensors file or fsspec URL")
    add_target(parser, required=False)
    parser.add_argument(
        "--hardware",
        metavar="GPU",
        help=f"compare the targets on this GPU ({', '.join(GPUS)}): weight error, bytes, splits, kernels, known faults;"
        " with --to only that target",
    )
    parser.add_argument("--scan", action="store_true", help="read the scales, and codes where needed")
    add_jobs(parser)


def run(args: argparse.Namespace) -> int:
    """Plan and print. Exit 3 if the scan says that ``convert`` would refuse; a comparison refuses nothing."""
    if args.hardware is not None:
        gpu = find_gpu(args.hardware)
        with progress(args) as report:
            compared = hardware.compare(open_checkpoint(args.src), gpu, args, report)
        print_result(args, compared, lambda console: render_hardware(console, compared))
        return 0
    if args.to is None:
        raise UsageError(
            "plan needs --to FORMAT (nvfp4, w4afp8, fp8, mxfp4 or bf16)",
            fix=f"or --hardware GPU ({', '.join(GPUS)}) to compare the formats",
        )
    work = plan(open_checkpoint(args.src), target_of(args))
    document = dict(summary(work))
    found = None
    if args.scan:
        with progress(args) as report:
            total = scan_bytes(work)
            found = scan(work, args.jobs, (lambda n: report("scan", n, total)) if report else None)
        document["scan"] = scan_document(found)
    print_result(args, document, lambda console: _render(console, work, document, found))
    return WOULD_REFUSE if found and found.inexact_matrices and not work.target.allow_inexact else 0


def scan_document(found: Scan) -> dict[str, Any]:
    """The scan's result as JSON."""
    return {
        "exact": not found.inexact_matrices,
        "half_blocks": found.half_blocks,
        "inexact_half_blocks": found.inexact_half_blocks,
        "inexact_matrices": found.inexact_matrices,
        "near_overflow": found.near_overflow,
        "global_exponents": {str(m): list(found.m.values()).count(m) for m in sorted(set(found.m.values()))},
    }


def _render(console: Console, work: Plan, document: dict[str, Any], found: Scan | None) -> None:
    rows = [(c["class"], c["from"], c["to"], c["matrices"], c["elements"]) for c in document["classes"]]
    console.print(table("cast", ("class", "from", "to", ">matrices", ">elements"), [r for r in rows if r[1] != r[2]]))
    if kept := [(r[0], r[1], r[3], r[4]) for r in rows if r[1] == r[2]]:
        console.print()
        console.print(table("kept as it is", ("class", "layout", ">matrices", ">elements"), kept))
    if recast := [(c["class"], c["dtype"], c["tensors"], c["bytes"]) for c in document["fp8"]]:
        console.print()
        console.print(table("cast to FP8 blocks", ("class", "dtype", ">tensors", ">bytes"), recast))
    plain = [(c["class"], c["dtype"], c["tensors"], c["bytes"]) for c in document["plain"]]
    console.print()
    console.print(table("copied byte for byte", ("class", "dtype", ">tensors", ">bytes"), plain))
    groups = f", {document['twin_groups']:,} groups with a global scale of their own"
    console.print(f"\nfamily    {document['family']}{groups if work.layout.FORMAT == 'nvfp4' else ''}")
    read, write = (f"{counted(len(shards), 'shard')} of" for shards in (work.source.shards, work.shards))
    tensors = (counted(document[f"{side}_tensors"], "tensor") for side in ("source", "out"))
    console.print(f"read      {read} {gigabytes(document['source_bytes'])}, {next(tensors)}")
    console.print(
        f"write     {write} {gigabytes(document['out_bytes'])}, {next(tensors)};"
        f" {counted(document['verbatim_shards'], 'shard')} copied whole"
    )
    if work.dropped:
        console.print(f"dropped   {counted(len(work.dropped), 'tensor')}: {next(iter(work.dropped.values()))}")
    for note in work.notes:
        console.print(f"note      {note}")
    console.print(f"exact?    {_exactness(work, document, found)}")
    for name, count in list(found.inexact_matrices.items() if found else ())[:SHOWN]:
        console.print(f"          {count:,} in {name}")
    if found and len(found.inexact_matrices) > SHOWN:
        console.print(f"          and in {len(found.inexact_matrices) - SHOWN:,} more (--json lists them all)")
    if found and found.near_overflow:
        matrices = counted(len(found.near_overflow), "matrix")
        console.print(f"warning   values near float32's limit in {matrices}")


def _exactness(work: Plan, document: dict[str, Any], found: Scan | None) -> str:
    """What is known of it: from headers alone, or from the scan."""
    numbers = "; every scale of the source is a number" if found else ""
    fp8 = f"{counted(len(work.fp8), 'BF16 module')} rounded to FP8" if work.fp8 else ""
    if document["quantized"]:
        return f"no: INT4 groups are quantized anew{fp8 and ', ' + fp8}{numbers}"
    if fp8:
        return f"no: {fp8}; INT4 codes and scales change their form only"
    if found and found.inexact_matrices:
        total = sum(found.inexact_matrices.values())
        return f"NO: {total:,} {work.unit} in {counted(len(found.inexact_matrices), 'matrix')}:"
    if all(format_of(m) == work.layout.FORMAT != "nvfp4" for m in work.cast):
        wide = found is None and any(m.scale.tensor.dtype in ("F16", "F32") for m in work.cast)
        return "yes: codes and scales change their form only" + (", if every scale is a BF16 number" if wide else "")
    if found is None:
        return "not known from headers; add --scan"
    elements = sum(m.rows * m.cols for m in work.cast)
    return f"yes, all {found.half_blocks if work.unit == 'half blocks' else elements:,} {work.unit}"
