"""``truecast check CKPT``: faults of a checkpoint that somebody made, each with the reason and the remedy."""

from __future__ import annotations

import argparse

from rich.console import Console

from truecast.cli.output import add_jobs, print_result, progress
from truecast.report.words import counted
from truecast.serve import GPUS, find_gpu
from truecast.verify.check import CheckReport, check

CLAIM_FAILS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("src", metavar="CKPT", help="folder, .safetensors file or fsspec URL")
    parser.add_argument(
        "--hardware",
        metavar="GPU",
        help=f"also refuse what this GPU's kernels read wrong ({', '.join(GPUS)}); without it that is a warning",
    )
    add_jobs(parser)


def run(args: argparse.Namespace) -> int:
    """Check and print the findings. Exit 1 if there is an error among them."""
    capability = None if args.hardware is None else find_gpu(args.hardware).capability
    with progress(args) as report:
        result = check(args.src, jobs=args.jobs, progress=report, capability=capability)
    print_result(args, result.document(), lambda console: _render(console, result))
    return 0 if result.ok else CLAIM_FAILS


def _render(console: Console, result: CheckReport) -> None:
    for finding in result.findings:
        console.print(f"{finding.severity.upper():8}{finding.id}  {finding.place}", markup=False)
        console.print(f"        {finding.message}", markup=False)
        console.print(f"        why: {finding.why}", markup=False)
        console.print(f"        remedy: {finding.remedy}", markup=False)
    verdict = "PASS" if result.ok else "FAIL"
    console.print(f"{verdict}  {counted(result.errors, 'error')}, {counted(result.warnings, 'warning')}")
