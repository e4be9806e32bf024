"""Running AIPerf: its configuration, its process, where its raw records end up.

AIPerf runs as a program of its own, with one phase of warm-up and one of measurement, the second taking over the
streams of the first as they end (``seamless``). It sends the request bodies verbatim (``raw_payload``) and keeps every
event of every stream with its arrival time (``raw`` export). Read in version 0.13.0; docs/bench.md has the details.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truecast.bench.guard import guarded, kill_group
from truecast.bench.http import authorization
from truecast.bench.processes import cores
from truecast.errors import InputError

RECORDS = "profile_export_raw.jsonl"
LOG = "aiperf.log"
READ_IN = "0.13"
"""The version whose records are understood; another may mean other things by the same names."""
VERSION_S = 60.0
DRAIN_S = 7 * 24 * 3600
"""Streams that run at the end of the duration are followed to their end, however long that takes."""
STREAM_S = 6 * 3600
"""A stream that goes on for longer is given up."""
POLL_S = 0.5
MIN_LOOKS_PER_S = 250
LOOKS_PER_STREAM = 1
"""How often AIPerf looks for a stream that has ended, to send the next request: on average 2 ms late or less."""
WORKER_STREAMS = 25
"""Streams of one sending process. AIPerf's own choice is three quarters of all cores, which take long to start."""
OTHER_PROCESSES = 2
"""Cores that are left to what is no sending process: AIPerf's timing, and its records."""
SOCKET_PATH = 107
"""The longest path of a Unix socket on Linux, less its end."""
SOCKET_NAME = 64
"""The longest path below its folder of temporary files that AIPerf gives a socket."""
SHOWN = 400
"""Characters of AIPerf's own words in an error."""
_INSTALL = (
    "pip install 'truecast[bench]'; beside the extra eval in an environment of its own on the path (docs/bench.md)"
)
_WORDS = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"},
}
"""A tokenizer that AIPerf can load without a network: it insists on one, and nothing is counted with it."""


@dataclass(frozen=True)
class Load:
    """One load: ``requests`` after the warm-up, or for ``duration`` seconds; exactly one of the two."""

    url: str
    model: str
    concurrency: int
    requests: int | None
    duration: float | None
    key: str | None = field(default=None, repr=False)

    @property
    def warmup(self) -> int:
        """Requests sent before the measured ones: as many have then finished as there are streams."""
        return 2 * self.concurrency


def find_aiperf() -> str:
    """Path of the ``aiperf`` program, of this environment or on the path. Raises: InputError."""
    beside = Path(sys.executable).parent / "aiperf"
    found = str(beside) if beside.exists() else shutil.which("aiperf")
    if found is None:
        raise InputError("bench needs AIPerf", fix=_INSTALL)
    return str(Path(found).absolute())


def version_of(program: str) -> str:
    """The program's version. Raises: InputError where it is no AIPerf, or one whose records are not understood."""
    try:
        asked = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"cannot be run: {error}", where=program, fix=_INSTALL) from None
    version = (asked.stdout.split() or [""])[-1]
    if asked.returncode != 0 or not version[:1].isdigit():
        said = " ".join(f"{asked.stdout} {asked.stderr}".split())[:SHOWN] or "nothing"
        raise InputError(f"is no AIPerf that runs: --version says {said}", where=program, fix=_INSTALL)
    if version.split(".")[:2] != READ_IN.split("."):
        raise InputError(f"is AIPerf {version}; only the records of {READ_IN} are known", where=program, fix=_INSTALL)
    return version


def run_load(
    program: str, load: Load, bodies: Sequence[Mapping[str, Any]], folder: Path, poll: Callable[[int], None]
) -> Path:
    """Run one load to its end and return the file of raw records.

    ``poll`` is called twice a second with AIPerf's process id, the group of all its processes.
    Nothing of AIPerf outlives this process, however it ends. Raises: InputError if AIPerf cannot start or ends without
    records; KeyboardInterrupt, after AIPerf is stopped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inputs, tokenizer = folder / "inputs.jsonl", folder / "tokenizer"
    inputs.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    tokenizer.mkdir(exist_ok=True)
    (tokenizer / "tokenizer.json").write_text(json.dumps(_WORDS))
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    config = folder / "aiperf.json"
    config.write_text(json.dumps(configuration(load, inputs, tokenizer, folder), indent=1))
    with (folder / LOG).open("wb") as log, guarded(folder) as watch:
        process = subprocess.Popen(  # its own session: a Ctrl-C is for this process, which then ends it
            [program, "profile", "--config", str(config)],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=folder,
            env=environment(folder),
        )
        try:
            watch(process.pid)
            while process.poll() is None:
                poll(process.pid)
                time.sleep(POLL_S)
        finally:
            kill_group(process)
    records = folder / RECORDS
    if process.returncode != 0 or not records.exists():
        said = last_error(folder / LOG)
        raise InputError(f"AIPerf ended with {process.returncode}: {said}", fix=f"with --out its {LOG} is kept there")
    return records


def configuration(load: Load, inputs: Path, tokenizer: Path, folder: Path) -> dict[str, Any]:
    """AIPerf's configuration (its schema 2.0) of one load."""
    ends: dict[str, Any] = (
        {"requests": load.requests} if load.duration is None else {"duration": load.duration, "gracePeriod": DRAIN_S}
    )
    # a phase of type "concurrency" looks for a free stream in a loop without a pause, which takes a core for itself
    looks = max(MIN_LOOKS_PER_S, LOOKS_PER_STREAM * load.concurrency)
    streams = {"type": "constant", "rate": looks, "concurrency": load.concurrency}
    return {
        "schemaVersion": "2.0",
        "benchmark": {
            "models": [load.model],
            "endpoint": {
                "urls": [load.url],
                "type": "chat",
                "streaming": True,
                "timeout": STREAM_S,
                "useServerTokenCount": True,
                "headers": authorization(load.key),
            },
            "datasets": [
                {"name": "main", "type": "file", "path": str(inputs), "format": "raw_payload", "sampling": "sequential"}
            ],
            "phases": [
                {"name": "warmup", **streams, "requests": load.warmup, "excludeFromResults": True},
                {"name": "profiling", **streams, **ends, "seamless": True},
            ],
            "tokenizer": {"name": str(tokenizer)},
            "artifacts": {"dir": str(folder), "raw": True},
            "runtime": {"ui": "none", "workers": workers(load.concurrency, cores())},
            "serverMetrics": {"enabled": False},
            "gpuTelemetry": {"enabled": False},
        },
    }


def workers(streams: int, usable: int) -> int:
    """How many processes send, on so many cores."""
    return max(1, min(math.ceil(streams / WORKER_STREAMS), usable - OTHER_PROCESSES))


def environment(folder: Path) -> dict[str, str]:
    """This process's, less what makes AIPerf look for the tokenizer's folder in the hub's cache.

    AIPerf leaves temporary files behind: they go to ``folder``, unless its sockets there would have too long a path.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    if len(os.fsencode(folder)) + SOCKET_NAME <= SOCKET_PATH:
        kept["TMPDIR"] = str(folder)
    return {**kept, "AIPERF_DATASET_MMAP_CACHE_ENABLED": "false"}


def last_error(log: Path) -> str:
    """The line of a log that most probably says what went wrong."""
    lines = [line.strip(" │╭╮╰╯─") for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and line != "Error Running AIPerf System"]
    told = [i for i, line in enumerate(lines) if "error" in line.lower()]
    return " ".join(lines[told[0] : told[0] + 3] if told else lines[-3:])[:SHOWN] or "it says nothing"
