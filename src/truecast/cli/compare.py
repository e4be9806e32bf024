"""``truecast compare A B``: two evals, load tests or audits, and what their difference shows."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from truecast.audit.side_by_side import side_by_side
from truecast.bench.compare import compare_benches, parse_bench
from truecast.cli.output import print_result, table
from truecast.cli.recorded import read_with_bytes
from truecast.errors import InputError, UsageError
from truecast.evals.compare import compare_evals
from truecast.evals.record import parse_record
from truecast.report.comparison import audit_words, bench_words, ends, eval_words, name_of, points
from truecast.report.words import figure, percent

CLAIM_FAILS = 1
_KINDS = {"truecast.eval/1": "eval", "truecast.bench/1": "bench", "truecast.audit/1": "audit"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    for name, what in (("a", "the reference's"), ("b", "the candidate's")):
        parser.add_argument(
            name, metavar=name.upper(), type=Path, help=f"{what} eval.json, bench.json or audit.json, or its folder"
        )
    parser.add_argument(
        "--margin",
        type=_margin,
        metavar="M",
        help="claim equivalence: scores within M of each other (0.01 is 1 point), rates within a factor of 1 + M;"
        " exit 1 where that is not shown",
    )
    parser.add_argument(
        "--common", action="store_true", help="of two evals with other problems, compare those that both have"
    )


def run(args: argparse.Namespace) -> int:
    """Compare and print. Exit 1 where a margin was given and equivalence is not shown."""
    (a, file_a, bytes_a), (b, file_b, bytes_b) = read_with_bytes(args.a), read_with_bytes(args.b)
    kind = _kind(a, file_a)
    if _kind(b, file_b) != kind:
        raise InputError(f"one is of {kind}, the other of {_kind(b, file_b)}", where=f"{file_a} and {file_b}")
    if args.common and kind != "eval":
        raise UsageError("--common is for evals")
    if kind == "eval":
        sides = parse_record(a, str(file_a)), parse_record(b, str(file_b))
        result = compare_evals(*sides, args.margin, common=args.common)
    elif kind == "bench":
        result = compare_benches(parse_bench(a, str(file_a)), parse_bench(b, str(file_b)), args.margin)
    elif args.margin is not None:
        raise UsageError("--margin is for scores and rates, not for KL")
    else:
        result = side_by_side(a, b, (file_a, file_b))
    for side, data in (("a", bytes_a), ("b", bytes_b)):
        result[side]["sha256"] = hashlib.sha256(data).hexdigest()
    print_result(args, result, lambda console: _render(console, result))
    return CLAIM_FAILS if result.get("equivalence", {}).get("shown") is False else 0


def _kind(document: Mapping[str, Any], file: Path) -> str:
    schema = document.get("schema")
    if not isinstance(schema, str) or schema not in _KINDS:
        raise InputError(
            f"schema is {schema!r:.80}, none of {', '.join(_KINDS)}",
            where=str(file),
            fix="give what `truecast eval`, `bench` or `audit` wrote",
        )
    return _KINDS[schema]


def _margin(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number between 0 and 1")
    return value


def _render(console: Console, result: Mapping[str, Any]) -> None:
    for warning in result["warnings"]:
        console.print(f"warning  {warning}")
    columns, rows, words = _SHOWN[result["kind"]]
    console.print(table("", columns, rows(result)))
    console.print("")
    for line in words(result):
        console.print(line)


def _eval_rows(result: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    for side in ("a", "b"):
        found = result[side]
        completed = "" if found["completed"] is None else percent(found["completed"])
        yield (
            f"{side.upper()}  {name_of(found)}",
            percent(found["score"]),
            ends(found["interval"], percent),
            completed,
            percent(found["truncated"]),
            percent(found["empty"]),
            f"{found['samples']:,}",
            f"{found['errors']:,}",
        )
    yield ("B less A", points(result["difference"]["mean"]), ends(result["difference"]["interval"], points), *[""] * 5)


def _bench_rows(result: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    for level in result["levels"]:
        for name, found in level["figures"].items():
            yield (
                f"{level['concurrency']:,}",
                name,
                figure(found["a"]),
                figure(found["b"]),
                figure(found["ratio"]),
                ends(found["interval"], figure),
                f"{found['runs'][0]} and {found['runs'][1]}",
            )


def _audit_rows(result: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    for side in ("a", "b"):
        found = result[side]
        cells = [
            cell
            for key in ("kl", "floor", "excess")
            for cell in ((figure(found[key]["mean"]), ends(found[key]["interval"], figure)) if found[key] else ("", ""))
        ]
        yield (f"{side.upper()}  {name_of(found)}", *cells[:3], *cells[4:])


_SHOWN: dict[str, Any] = {
    "eval": (
        ("side", ">score", "95% interval", ">completed", ">truncated", ">empty", ">answers", ">errors"),
        _eval_rows,
        eval_words,
    ),
    "bench": ((">streams", "figure", ">A", ">B", ">B / A", "95% interval", "runs"), _bench_rows, bench_words),
    "audit": (
        ("side", ">KL", "95% interval", ">noise floor", ">excess", "95% interval"),
        _audit_rows,
        audit_words,
    ),
}
