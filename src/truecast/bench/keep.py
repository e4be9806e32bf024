"""What a load test leaves in its folder: the document and one line for each request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from truecast.bench.figures import answer_delay, decode_speed, reasoning_tokens
from truecast.bench.stream import Request
from truecast.errors import RefusedError

RESULT, REQUESTS = "bench.json", "requests.jsonl"


def claim_folder(out: Path) -> None:
    """Make the folder. Raises: RefusedError where it is in use or cannot be made."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RefusedError("exists and is not empty", where=str(out), fix="name another --out")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"cannot be made: {error.strerror}", where=str(out)) from None


def write_document(out: Path, document: Mapping[str, Any]) -> None:
    """Write the document whole: a reader sees the last one or this one. Raises: RefusedError."""
    partial = out / f"{RESULT}.partial"
    try:
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(out / RESULT)
    except OSError as error:
        raise RefusedError(f"cannot be written: {error.strerror}", where=str(partial)) from None


def keep_requests(out: Path, requests: Sequence[Request], concurrency: int, run: int) -> None:
    """Append one line for each request: its times, counts and speeds, without its text. Raises: RefusedError."""
    try:
        with (out / REQUESTS).open("a", encoding="utf-8") as lines:
            for request in requests:
                lines.write(json.dumps({"concurrency": concurrency, "run": run, **_line(request)}) + "\n")
    except OSError as error:
        raise RefusedError(f"cannot be written: {error.strerror}", where=str(out / REQUESTS)) from None


def _line(request: Request) -> dict[str, Any]:
    times = request.times
    return {
        "warmup": request.warmup,
        "sent": request.sent,
        "first_token": float(times[0]) if times.size else None,
        "last_token": float(times[-1]) if times.size else None,
        "ended": request.ended,
        "chunks": int(times.size),
        "prompt_tokens": request.prompt,
        "cached_tokens": request.cached,
        "output_tokens": request.output,
        "reasoning_tokens": reasoning_tokens(request),
        "reasoning_reported": request.reasoning,
        "stream": decode_speed(request),
        "first_answer_after": answer_delay(request),
        "finish": request.finish,
        "error": request.error,
    }
