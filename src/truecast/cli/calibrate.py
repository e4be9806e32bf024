"""``truecast calibrate CKPT --corpus FILE --out FILE``: what enters the quantized matrices."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from truecast.audit.kinds import DEVICES
from truecast.cli.output import gigabytes, positive, print_result, progress
from truecast.cli.target import size_in_bytes
from truecast.errors import InputError
from truecast.report.words import counted

NAME = "calibrate"
HELP = "Note what enters each quantized matrix over a corpus: activation scales, and weights for rounding."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("ckpt", metavar="CKPT", help="the checkpoint that is to be converted")
    parser.add_argument(
        "--corpus", type=Path, required=True, metavar="FILE", help="documents as token ids, made by `truecast corpus`"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="calibration.safetensors to write")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="default: CUDA where there is a GPU")
    parser.add_argument(
        "--memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="resident memory to stay within, e.g. 600MB (default: no cap)",
    )
    parser.add_argument("--hessian", action="store_true", help="Hessians too, for --rounding gptq: small models only")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N documents")


def run(args: argparse.Namespace) -> int:
    """Calibrate and print what the file holds."""
    try:
        from truecast.audit.calibrate import calibrate
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError("calibrate needs PyTorch", fix="pip install 'truecast[torch]'") from None
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
