"""``truecast convert SRC OUT --to FORMAT``: write the recast checkpoint."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from truecast.checkpoint.journal import MANIFEST
from truecast.checkpoint.source import SHARD_SUFFIX
from truecast.cli.output import add_jobs, gigabytes, print_result, progress
from truecast.cli.target import add_target, target_of
from truecast.convert import convert
from truecast.convert.device import CHOICES
from truecast.report.card import render_card
from truecast.report.outcome import outcome_line
from truecast.report.words import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("src", metavar="SRC", help="folder, .safetensors file or fsspec URL")
    parser.add_argument("out", metavar="OUT", help="folder to write")
    add_target(parser)
    add_jobs(parser)
    parser.add_argument(
        "--device", choices=CHOICES, default="auto", help="where INT4 codes are computed; the result is the same"
    )


def run(args: argparse.Namespace) -> int:
    """Convert and print the outcome."""
    with progress(args) as report:
        manifest = convert(
            args.src, args.out, target_of(args), jobs=args.jobs, device=args.device, card=render_card, progress=report
        )

    def render(console: Console) -> None:
        sizes = {name: f["bytes"] for name, f in manifest["files"].items()}
        shards = [size for name, size in sizes.items() if name.endswith(SHARD_SUFFIX)]
        folder = sum(sizes.values()) + (Path(args.out) / MANIFEST).stat().st_size
        console.print(
            f"{args.out}: {manifest['target']['layout']}, {counted(manifest['tensors'], 'tensor')},"
            f" {counted(len(shards), 'shard')} of {gigabytes(sum(shards))}, folder {gigabytes(folder)}"
        )
        console.print(outcome_line(manifest))
        for note in manifest["notes"]:
            console.print(f"note: {note}")
        files = [
            word
            for option in ("weights", "calibration")
            if (f := getattr(args, option))
            for word in (f"--{option}", str(f))
        ]
        console.print(f"\nProve it: {shlex.join(['truecast', 'verify', args.src, args.out, *files])}")

    print_result(args, _document(manifest), render)
    return 0


def _document(manifest: dict[str, Any]) -> dict[str, Any]:
    return {"manifest": {k: v for k, v in manifest.items() if k != "files"}, "files": len(manifest["files"])}
