"""``truecast bench URL --prompts FILE --concurrency 20,50 --duration S``: the speed of a deployment under load."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from truecast.bench.bench import bench
from truecast.bench.document import Options
from truecast.bench.keep import RESULT
from truecast.cli.options import add_key, key_of
from truecast.cli.output import positive, print_result, say, table
from truecast.errors import UsageError

_FIGURES = {
    "stream": ("tok/s per stream, median", "{:.1f}"),
    "stream_e2e": ("tok/s per stream, end to end, median", "{:.1f}"),
    "aggregate": ("aggregate tok/s", "{:.0f}"),
    "residual": ("aggregate / (streams x mean)", "{:.3f}"),
    "residual_e2e": ("the same, end to end", "{:.3f}"),
    "ttft": ("TTFT, any channel, median, s", "{:.3f}"),
    "ttft_p99": ("TTFT, 99th percentile, s", "{:.3f}"),
    "ttft_answer": ("TTFT of the answer, median, s", "{:.3f}"),
    "reasoning_share": ("reasoning share", "{:.1%}"),
    "output_tokens": ("output tokens per request, mean", "{:.0f}"),
    "tokens_per_chunk": ("tokens per chunk", "{:.2f}"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("url", metavar="URL", help="the server or router, OpenAI-compatible")
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="real prompts, JSONL")
    parser.add_argument(
        "--concurrency", type=_levels, required=True, metavar="N,N", help="streams at a time, one level or several"
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--duration", type=_seconds, metavar="S", help="seconds of each run after its warm-up")
    length.add_argument("--requests", type=positive, metavar="N", help="requests of each run after its warm-up")
    parser.add_argument("--runs", type=positive, default=2, metavar="N", help="runs of each level (default: 2)")
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="token limit of an output (default: none)")
    parser.add_argument("--temperature", type=_number, metavar="T", help="default: the server's")
    parser.add_argument("--top-p", type=_number, metavar="P", help="default: the server's")
    parser.add_argument("--model", metavar="NAME", help="which model (default: the first that the server lists)")
    parser.add_argument("--keep-cache", action="store_true", help="do not flush the server's prefix cache before a run")
    parser.add_argument("--replicas", type=positive, default=1, metavar="R", help="replicas behind this router")
    parser.add_argument("--single", type=Path, metavar="FILE", help="one replica's bench.json, to compare with")
    add_key(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the document and a line for each request here")


def run(args: argparse.Namespace) -> int:
    """Measure, print the figures. Returns: 1 if the client or failures spoilt them."""
    if args.single is not None and args.replicas < 2:
        raise UsageError("--single compares replicas with one of them", fix="--replicas R, at least 2")
    sampling = {"max_tokens": args.max_tokens, "temperature": args.temperature, "top_p": args.top_p}
    options = Options(
        levels=args.concurrency,
        requests=args.requests,
        duration=args.duration,
        runs=args.runs,
        sampling={name: value for name, value in sampling.items() if value is not None},
        model=args.model,
        keep_cache=args.keep_cache,
        replicas=args.replicas,
        single=args.single,
        key=key_of(args),
    )
    tell = None if args.quiet else say
    document = bench(args.url, args.prompts, options, args.out, ["truecast", *sys.argv[1:]], tell)
    print_result(args, document, lambda console: _render(console, document, args.out))
    return 0 if document["sound"] else 1


def _render(console: Console, document: Mapping[str, Any], out: Path | None) -> None:
    server = document["server"]
    about = " ".join(str(x) for x in (server["model"], server["engine"] or "", server["version"] or "") if x)
    console.print(f"{about} at {server['url']}")
    for level in document["levels"]:
        runs = level["runs"]
        console.print(
            table(
                f"\n{level['concurrency']} streams, {len(runs)} run{'s' if len(runs) > 1 else ''}",
                ("figure", ">value", "95% interval, unit: run", "95% interval, unit: request"),
                _rows(level),
            )
        )
        spans = ", ".join(f"{r['window']['seconds']:.1f} s with {r['in_flight']:.1f} in flight" for r in runs)
        console.print(f"steady window: {spans}; prefix cache before: {runs[0]['cache']['before']}")
        for fault in level["faults"]:
            console.print(f"does not stand: {fault}")
        for remark in level["remarks"]:
            console.print(f"note: {remark}")
    console.print("\ndefinitions")
    for name, (title, _) in _FIGURES.items():
        console.print(f"  {title}: {document['definitions'][name]}")
    if out is not None:
        console.print(f"document  {out / RESULT}")


def _rows(level: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for name, (title, form) in _FIGURES.items():
        figure = level["figures"][name]
        if figure["value"] is None:
            continue
        over_requests = _ends(figure.get("interval_over_requests"), form)
        if over_requests:
            over_requests += f"  (n = {figure['requests']})"
        yield title, form.format(figure["value"]), _ends(figure["interval_over_runs"], form), over_requests
    if level["acceptance_length"] is not None:
        yield "acceptance length, by the server", f"{level['acceptance_length']:.2f}", "", ""
    if (one := level.get("against_one_replica")) is not None:
        ratio = one["reason"] if one["ratio"] is None else f"{one['ratio']:.3f}"
        yield f"of one replica at {one['at']:g} streams", ratio, "", ""


def _ends(interval: Sequence[float] | None, form: str) -> str:
    return f"{form.format(interval[0])} to {form.format(interval[1])}" if interval else ""


def _levels(text: str) -> list[int]:
    levels = [positive(part) for part in text.split(",")]
    if len(set(levels)) < len(levels):
        raise argparse.ArgumentTypeError(f"{text!r} names a level twice")
    return levels


def _seconds(text: str) -> float:
    if (seconds := _number(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time")
    return seconds


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 0")
    return value
