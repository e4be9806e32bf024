"""``truecast verify SRC OUT``: prove, over every element, that OUT holds what SRC holds."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from truecast.cli.output import add_jobs, gigabytes, print_result, progress
from truecast.cli.quality import render_quality
from truecast.errors import UsageError
from truecast.report.words import counted
from truecast.verify import Report, verify, verify_against

CLAIM_FAILS = 1
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("src", metavar="SRC", help="the source; with --against, the one checkpoint to prove again")
    parser.add_argument("out", metavar="OUT", nargs="?", help="the converted checkpoint")
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="write hashes from which anyone can prove a tensor"
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="the importance vectors by which INT4 scales were chosen"
    )
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="the calibration that activation scales were taken from"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="prove a checkpoint (either side) against a certificate"
    )
    parser.add_argument(
        "--tensor", action="append", metavar="NAME", help="with --against: only this one; may be repeated"
    )
    add_jobs(parser)


def run(args: argparse.Namespace) -> int:
    """Verify and print the verdict. Exit 1 if the claim does not hold."""
    if args.against is not None:
        if args.out is not None or any((args.certificate, args.weights, args.calibration)):
            raise UsageError("--against takes one checkpoint and no --certificate, --weights or --calibration")
        result = verify_against(args.src, args.against, args.tensor)
    elif args.out is None:
        raise UsageError("verify needs SRC and OUT", fix="or one checkpoint and --against FILE")
    elif args.tensor:
        raise UsageError("--tensor goes with --against")
    else:
        with progress(args) as report:
            result = verify(
                args.src,
                args.out,
                jobs=args.jobs,
                certificate=args.certificate,
                weights=args.weights,
                calibration=args.calibration,
                progress=report,
            )
    print_result(args, result.document(), lambda console: _render(console, result))
    return 0 if result.ok else CLAIM_FAILS


def _render(console: Console, result: Report) -> None:
    for note in result.notes:  # first: they often say why there are faults
        console.print(f"note  {note}", markup=False)
    for failure in result.failures.kept[:SHOWN]:
        place = [failure.tensor, f"in {failure.file}" if failure.tensor and failure.file else failure.file]
        if failure.row is not None:
            place.append(f"at row {failure.row}, column {failure.column}")
        console.print(f"FAIL  {' '.join(p for p in place if p)}: {failure.message}", markup=False)
    if result.failures.total > SHOWN:
        console.print(f"      and {result.failures.total - SHOWN:,} more")
    quality = result.quality
    if quality.matrices:
        render_quality(console, quality.document(unbeaten=not result.scales_unchecked))
    counts = result.counts
    verdict = "PASS " if result.ok else f"FAIL  {counted(result.failures.total, 'fault')};"
    if result.ok and quality.matrices:
        kinds = [f"{f.matrices:,} {kind}" for kind, f in (("INT4", quality.int4), ("FP8", quality.fp8)) if f.matrices]
        approximate = "matrix approximates" if quality.matrices == 1 else "matrices approximate"
        held = "as the manifest declares" if result.declared else "of which nothing is declared"
        if result.scales_unchecked:
            file = "calibration" if "calibration" in result.scales_unchecked else "weights file"
            held += f", but without the {file} the choice of INT4 scales is not checked"
        verdict = f"PASS, WITH LOSS: {' and '.join(kinds)} {approximate} the source, {held};"
    elif result.ok and counts.inexact_half_blocks:
        verdict = (
            f"PASS, NOT EXACT: {counted(counts.inexact_half_blocks, 'half block')} changed as the manifest declares;"
        )
    elif result.ok and counts.inexact_elements:
        verdict = f"PASS, NOT EXACT: {counted(counts.inexact_elements, 'element')} rounded as the manifest declares;"
    blocks = f"{counted(counts.half_blocks, 'half block')}, " if counts.half_blocks else ""
    console.print(
        f"{verdict} {counted(counts.matrices, 'matrix')}, {blocks}{counted(counts.elements, 'element')} compared;"
        f" {counted(counts.copied_tensors, 'tensor')} byte for byte; {gigabytes(counts.bytes_read)} read"
    )
