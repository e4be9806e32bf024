"""``truecast calibrate CKPT --corpus FILE --out FILE``: what enters the quantized matrices."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from truecast.cli.options import add_corpus, add_memory, add_model_device, needing
from truecast.cli.output import gigabytes, print_result, progress
from truecast.report.words import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("ckpt", metavar="CKPT", help="the checkpoint that is to be converted")
    add_corpus(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="calibration.safetensors to write")
    add_model_device(parser)
    add_memory(parser)
    parser.add_argument("--hessian", action="store_true", help="Hessians too, for --rounding gptq: small models only")


def run(args: argparse.Namespace) -> int:
    """Calibrate and print what the file holds."""
    with needing("torch", args.verb):
        from truecast.audit.calibrate import calibrate
    with progress(args) as report:
        result = calibrate(
            args.ckpt,
            args.corpus,
            args.out,
            device=args.device,
            memory=args.memory,
            hessian=args.hessian,
            limit=args.limit,
            progress=report,
        )

    def render(console: Console) -> None:
        matrices, documents = counted(result["modules"], "matrix"), counted(result["documents"], "document")
        console.print(
            f"{args.out}: {matrices}, {counted(result['hessians'], 'Hessian')}, {gigabytes(result['bytes'])};"
            f" {documents} of {result['tokens']:,} tokens, {result['seconds']:,.0f} s"
        )
        if never := result["never_routed"]:
            console.print(f"{counted(len(never), 'matrix')} saw no token and has its layer's values: {never[0]}, ...")
        console.print(f"\nUse it: truecast convert {args.ckpt} OUT --to w4afp8 --calibration {args.out}")

    print_result(args, result, render)
    return 0
