"""A load test from the first question to the document: levels of concurrency, each run two or more times."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from truecast.bench.aiperf import LOG, Load, find_aiperf, run_load, version_of
from truecast.bench.document import Options, finish_level, head
from truecast.bench.figures import run_figures
from truecast.bench.keep import claim_folder, keep_requests, write_document
from truecast.bench.monitor import Monitor
from truecast.bench.prompts import read_prompts, request_bodies
from truecast.bench.replicas import curve_of
from truecast.bench.server import Server, changed_since, counts_tokens, describe, flush_cache
from truecast.bench.stream import Request, read_requests
from truecast.bench.window import Window
from truecast.errors import InputError, RefusedError

Tell = Callable[[str], None]


def bench(
    url: str, prompts: Path, options: Options, out: Path | None, command: Sequence[str], tell: Tell | None = None
) -> dict[str, Any]:
    """Measure a server under load and return the document, whose ``sound`` says whether the figures stand.

    With ``out`` the document is written after every run: what has finished is kept, whatever comes after.
    Raises: InputError (server, prompts, AIPerf), RefusedError (``out`` is in use), KeyboardInterrupt.
    """
    read = read_prompts(prompts)
    bodies = read.bodies
    curve = None if options.single is None else curve_of(options.single, read.sha256, options.sampling)
    program = find_aiperf()
    version = version_of(program)
    server = describe(url, options.model, options.key)
    server = replace(server, per_chunk=counts_tokens(server, bodies[0]))
    document = head(server, read, version, options, command)
    if out is not None:
        claim_folder(out)
    sent = 0
    for concurrency in options.levels:
        level: dict[str, Any] = {"concurrency": concurrency, "runs": []}
        for number in range(options.runs):
            if tell is not None:
                tell(f"{concurrency} streams, run {number + 1} of {options.runs}")
            turned = [*bodies[sent % len(bodies) :], *bodies[: sent % len(bodies)]]
            run, requests = _run(program, server, turned, options, concurrency, out)
            sent += len(requests)
            level["runs"].append(run)
            document["levels"] = [*(x for x in document["levels"] if x is not level), level]
            finish_level(level, document, server, curve)
            if out is not None:
                keep_requests(out, requests, concurrency, number)
                write_document(out, document)
    document["complete"] = True
    if out is not None:
        write_document(out, document)
    return document


def _run(
    program: str,
    server: Server,
    bodies: Sequence[Mapping[str, Any]],
    options: Options,
    concurrency: int,
    out: Path | None,
) -> tuple[dict[str, Any], list[Request]]:
    """One run at one level: its figures and its requests."""
    cache = "kept" if options.keep_cache else flush_cache(server)
    load = Load(server.url, server.model, concurrency, options.requests, options.duration, server.key)
    monitor = Monitor(server.url, server.key)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    payloads = request_bodies(bodies, options.sampling, server.model, per_chunk=server.per_chunk)
    try:
        with tempfile.TemporaryDirectory(prefix="truecast-bench-") as scratch, _log_kept(Path(scratch), out):
            records = run_load(program, load, payloads, Path(scratch), monitor.poll)
            requests = list(read_requests(records, server.context))
    except OSError as error:
        where = f"temporary files in {tempfile.tempdir or 'the usual places'}"
        fix = "TMPDIR names another place"
        raise RefusedError(f"cannot be written: {error.strerror}", where=where, fix=fix) from None
    if all(r.error is not None for r in requests):
        said = requests[0].error if requests else "none was sent"
        raise InputError(f"every request failed: {said}", where=server.url)
    run = run_figures(requests, concurrency)
    window = Window(run["window"]["start"], run["window"]["end"])
    run["cache"]["before"] = cache
    run["server_changed"] = changed_since(server)
    return {"date": began, **run, "client": monitor.client(window), "server": monitor.server(window)}, requests


@contextmanager
def _log_kept(folder: Path, out: Path | None) -> Iterator[None]:
    """Context of a load in ``folder``: where it breaks off, AIPerf's log goes to ``out``."""
    try:
        yield
    except InputError:
        if out is not None and (folder / LOG).exists():
            shutil.copy(folder / LOG, out / LOG)
        raise
