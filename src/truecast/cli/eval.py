"""``truecast eval URL``: how well does a server answer, and how sure is that?"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from truecast import __version__
from truecast.cli.options import add_key, key_of, needing
from truecast.cli.output import REPORT_EVERY_S, positive, print_result, say
from truecast.errors import UsageError
from truecast.serve.server_info import ServerFacts, server_info

INCOMPLETE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("url", metavar="URL", help="address of the server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--task",
        required=True,
        metavar="NAME[,NAME]",
        help="aime, hmmt (of 2026; another year: aime25, hmmt_feb25; aime+hmmt for both as one), gpqa-diamond, ifbench, scicode, "
        "dialogues, or any task of inspect: package/task, file.py@task",
    )
    parser.add_argument("--samples", type=positive, metavar="K", help="answers a problem (default: the task's)")
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="[TASK=]FILE",
        help="problems as JSON lines or CSV, instead of the package's or the hub's",
    )
    parser.add_argument(
        "--prompt",
        type=Path,
        metavar="FILE",
        help="template with {problem} (scicode: of NeMo-Skills), instead of the task's",
    )
    parser.add_argument("--model", metavar="NAME", help="model to ask (default: the first that the server lists)")
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="tokens of one reply (default: the task's)")
    parser.add_argument(
        "--temperature", type=_number(0, 100), metavar="T", help="for every answer (default: the task's)"
    )
    parser.add_argument("--top-p", type=_number(0, 1), metavar="P", help="for every answer (default: the task's)")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N problems")
    parser.add_argument(
        "--concurrency", type=positive, default=16, metavar="N", help="requests at once (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=_number(1, 864_000),
        default=7200,
        metavar="S",
        help="seconds one reply may take (default: %(default)s)",
    )
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="argument of a task of inspect"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("eval"),
        metavar="DIR",
        help="folder for records, one within it a task; the same command goes on there (default: %(default)s)",
    )
    add_key(parser)


def run(args: argparse.Namespace) -> int:
    """Ask, score, print. Exit 1 if answers are missing for errors."""
    names = [name for name in args.task.split(",") if name]
    if not names or len(set(names)) < len(names):
        raise UsageError("names no task, or one twice", where="--task")
    data, key = _data(args.data, names), key_of(args)
    with needing("eval", "eval"):
        from truecast.evals.evaluate import Choices, evaluate
        from truecast.evals.running import Server
        from truecast.evals.tasks.find import find_task

        found = [find_task(name, data[name], args.prompt, _arguments(args.arg)) for name in names]
    facts = server_info(args.url, key=key)
    model = args.model or facts.model
    server = Server(f"{facts.url.rstrip('/')}/v1", model, key, args.concurrency, args.timeout)
    choices = Choices(args.samples, args.max_tokens, args.temperature, args.top_p, args.limit)
    header = {
        "truecast": __version__,
        "command": ["truecast", *sys.argv[1:]],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    records = []
    for definition in found:
        tell = _progress(definition.name) if not args.quiet else None
        place = args.out / definition.name
        records.append(evaluate(definition, server, choices, place, _described(facts, model), header, tell))
    document = records[0] if len(records) == 1 else {"runs": records}
    print_result(args, document, lambda console: _render(console, records))
    if not args.quiet and not args.json:
        say(f"records: {', '.join(str(args.out / d.name / 'eval.json') for d in found)}")
    return INCOMPLETE if any(record["scores"]["errors"] for record in records) else 0


def _data(given: Sequence[str], names: Sequence[str]) -> Mapping[str, list[Path]]:
    """Files by task. Raises: UsageError where it is not said whose a file is."""
    found: dict[str, list[Path]] = {name: [] for name in names}
    for text in given:
        name, sign, file = text.partition("=")
        if sign and name in found:
            found[name].append(Path(file))
        elif len(names) == 1:
            found[names[0]].append(Path(text))
        else:
            raise UsageError(f"whose is {text!r}?", where="--data", fix=f"say it as {names[0]}={text}")
    return found


def _arguments(given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE``, the value as JSON where it is some, else as text."""
    found: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise UsageError(f"{text!r} is not NAME=VALUE", where="--arg")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _described(facts: ServerFacts, model: str) -> dict[str, Any]:
    """What the server reports of itself."""
    return {
        "engine": facts.engine,
        "version": facts.version,
        "model": model,
        "arguments": dict(facts.arguments),
        "max_total_tokens": facts.max_total_tokens,
    }


def _progress(name: str) -> Callable[[int, int, int], None]:
    """On a terminal one line that is written over; elsewhere a line now and then."""
    terminal, last = sys.stderr.isatty(), time.monotonic()

    def tell(answered: int, failed: int, total: int) -> None:
        nonlocal last
        line = f"{name}: {answered:,} of {total:,} answered" + (f", {failed:,} failed" if failed else "")
        if terminal:
            print(f"\r{line}", end="\n" if answered + failed == total else "", file=sys.stderr, flush=True)
        elif time.monotonic() - last >= REPORT_EVERY_S:
            last = time.monotonic()
            say(line)

    return tell


def _render(console: Console, records: Sequence[Mapping[str, Any]]) -> None:
    for record in records:
        found, server = record["scores"], record["server"]
        engine = "engine not named" if server["engine"] == "unknown" else server["engine"]
        console.print(
            f"{record['task']['name']}  {server['model']} ({' '.join(filter(None, (engine, server['version'])))})"
        )
        for name, value in _lines(found):
            console.print(f"  {name:22}{value}")
        for warning in found["warnings"]:
            console.print(f"  warning: {warning}")


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "score", _with_error(found)
    for name, measure in found["measures"].items():
        yield f"  {name}", f"{_with_error(measure)}, of {measure['of']:,}"
    if len(found["per_seed"]) > 1:
        yield "by seed", "  ".join(f"{_percent(seed['score'])}" for seed in found["per_seed"])
    per = f"{found['scored_problems']:,} problems" + (
        f" in {found['clusters']:,} clusters" if found["clusters"] else ""
    )
    yield "answers", f"{found['answers']:,} to {per}; errors {found['errors']:,}"
    yield "cut off", f"{_percent(found['truncated'])}; empty {_percent(found['empty'])}"
    if found["truncated"]:
        low, high = found["bounds"]
        yield "without those", f"{_percent(found['completed'])}; all wrong {_percent(low)}, all right {_percent(high)}"
    if (tokens := found["tokens"]) is not None:
        used = ", ".join(f"{name} {tokens[name]:,}" for name in ("p50", "p90", "p99", "max"))
        yield "tokens of a reply", f"{used}; budget {tokens['budget']:,}"


def _with_error(found: Mapping[str, Any]) -> str:
    text = _percent(found["score"])
    if found["se"] is not None:
        text += f"  SE {100 * found['se']:.2f} pt"
    if found["interval"] is not None:
        text += f"  95% interval {_percent(found['interval'][0])} to {_percent(found['interval'][1])}"
    return text


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least:g} to {most:g}")
        return value

    return parse
