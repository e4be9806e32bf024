"""How results, errors and progress reach the user: results on stdout, everything else on stderr."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from truecast.errors import RefusedError

REPORT_EVERY_S = 30.0
"""Without a terminal, progress is one line this often."""

PIPE_COLUMNS = 10_000
"""Without a terminal no name is ever cut."""

Report = Callable[[str, int, int], None]
"""Told ``(stage, bytes done since the last call, bytes of the whole stage)``."""


def print_result(args: argparse.Namespace, document: Mapping[str, Any], render: Callable[[Console], None]) -> None:
    """Print the result: one JSON document with ``--json``, else what ``render`` prints."""
    try:
        if args.json:
            print(_json({"schema": f"truecast.{args.verb}/1", **document}))
        else:
            wide = None if sys.stdout.isatty() else PIPE_COLUMNS
            # names come from files: they are no markup
            render(_Console(width=wide, highlight=False, soft_wrap=True, markup=False, emoji=False))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)  # the reader has left; the exit code still says what came out
    except OSError as error:
        _discard(sys.stdout)
        raise RefusedError(f"cannot print the result: {error.strerror}", where="standard output") from None


def print_error(args: argparse.Namespace, message: str, exit_code: int) -> None:
    """Print an error to stderr; with ``--json`` also as the one document on stdout."""
    if args.json:
        try:
            print(
                json.dumps({"schema": f"truecast.{args.verb}/1", "error": message, "exit_code": exit_code}), flush=True
            )
        except OSError:
            _discard(sys.stdout)
    say(f"truecast {args.verb}: {message}")


def neutral(text: str) -> str:
    """Control characters, which a terminal would obey, escaped; so are line breaks, which could fake a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _json(document: Mapping[str, Any]) -> str:
    """JSON whose strings hold no raw control character, not even those that JSON allows (DEL, C1)."""
    lines = json.dumps(document, indent=1, ensure_ascii=False).split("\n")
    return "\n".join(
        line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
        for line in lines
    ).replace("\x7f", "\\u007f")


def say(line: str) -> None:
    """Print one line to stderr, control characters (a terminal would obey them) escaped. Nobody need be reading."""
    try:
        print(neutral(line), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def tolerate_output() -> None:
    """Let names that the output's encoding does not know appear escaped, rather than end in an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Console(Console):
    """rich's console, but what it prints is neutral, and it does not end the process when nobody reads on."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; only line breaks at the start of a text are kept as such."""
        super().print(*(_neutral_after_breaks(o) if isinstance(o, str) else o for o in objects), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _neutral_after_breaks(text: str) -> str:
    rest = text.lstrip("\n")
    return text[: len(text) - len(rest)] + neutral(rest)


def _discard(stream: TextIO) -> None:
    """Send what is left in the buffer nowhere, so that Python has nothing to complain of at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table; columns whose name starts with ``>`` are right-aligned. Text is broken over lines, never cut off."""
    result = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        if column.startswith(">"):
            result.add_column(column.lstrip(">"), justify="right", no_wrap=True)
        else:
            result.add_column(column, overflow="fold")
    for row in rows:
        result.add_row(*(f"{cell:,}" if isinstance(cell, int) else neutral(str(cell)) for cell in row))
    return result


def gigabytes(size: int) -> str:
    """A size for people: GB, or smaller units below one."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} B"


@contextmanager
def progress(args: argparse.Namespace) -> Iterator[Report | None]:
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere, nothing with ``--quiet``."""
    if args.quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as bar:
            yield _bar_report(bar)
    else:
        yield _line_report()


def _bar() -> Progress:
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))


def _bar_report(bar: Progress) -> Report:
    tasks: dict[str, Any] = {}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total)
        bar.update(tasks[stage], advance=done)

    return report


def _line_report() -> Report:
    done_by_stage: dict[str, int] = {}
    last = time.monotonic()

    def report(stage: str, done: int, total: int) -> None:
        nonlocal last
        done_by_stage[stage] = done_by_stage.get(stage, 0) + done
        if time.monotonic() - last >= REPORT_EVERY_S:
            last = time.monotonic()
            say(f"{stage}: {gigabytes(done_by_stage[stage])} of {gigabytes(total)}")

    return report


def default_jobs() -> int:
    """One process per usable core, at most eight: more do not make a disk faster."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add ``--jobs``."""
    parser.add_argument(
        "--jobs", type=positive, default=default_jobs(), metavar="N", help="worker processes (default: %(default)s)"
    )


def positive(text: str) -> int:
    """A whole number of at least 1. Raises: ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)
