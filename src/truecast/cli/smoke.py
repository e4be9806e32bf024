"""``truecast smoke URL``: is a server that was just started fit for use?"""

from __future__ import annotations

import argparse
import math
import sys

from rich.console import Console

from truecast.cli.options import add_key, key_of, needing
from truecast.cli.output import print_result, say
from truecast.serve.smoke import SECONDS, Finding, SmokeReport, smoke

CLAIM_FAILS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("url", metavar="URL", help="address of the server, such as http://127.0.0.1:8000")
    parser.add_argument("--model", metavar="NAME", help="model to ask (default: the first that the server lists)")
    parser.add_argument(
        "--reference", metavar="CKPT", help="the served checkpoint: compare log-probabilities with truecast's own model"
    )
    add_key(parser)
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=SECONDS,
        metavar="N",
        help="seconds one answer may take (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Test and print the findings. Exit 1 if a check fails."""
    key = key_of(args)
    tell = _progress if not args.quiet and sys.stderr.isatty() else None
    with needing("serve", "smoke --reference"):
        result = smoke(
            args.url, model=args.model, reference=args.reference, key=key, seconds=args.timeout, tell=tell
        )  # fmt: skip
    print_result(args, result.document(), lambda console: _render(console, result))
    return 0 if result.ok else CLAIM_FAILS


def _progress(finding: Finding) -> None:
    say(f"{finding.status:5}{finding.id}")


def _render(console: Console, result: SmokeReport) -> None:
    for finding in result.findings:
        console.print(f"{finding.status:5}{finding.id:16}{finding.evidence}", markup=False)
        if finding.remedy:
            console.print(f"     remedy: {finding.remedy}", markup=False)
    verdict = "PASS" if result.ok else "FAIL"
    counts = ", ".join(f"{result.count(s)} {s.lower()}" for s in ("PASS", "WARN", "FAIL", "SKIP") if result.count(s))
    console.print(f"{verdict}  {result.model} at {result.url}: {counts}")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no time from 0 to 86,400 seconds")
    return value
