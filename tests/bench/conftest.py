from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bench import stand_in as program
from tests.process import Process
from truecast.bench.aiperf import RECORDS, Load, configuration
from truecast.bench.bench import bench
from truecast.bench.document import Options

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Serving:
    """A timed server that runs."""

    url: str

    def page(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as answer:
            return json.loads(answer.read())

    def log(self) -> list[dict[str, Any]]:
        """What it served, without the probes."""
        return [s for s in self.page("/timed/log") if s["outcome"] != "probe"]


Serve = Callable[..., Serving]


@pytest.fixture(scope="session")
def timed_port() -> Iterator[int]:
    """Port of the one timed server process of this session."""
    command = [sys.executable, "-m", "tests.bench.timed_server"]
    with Process(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.fixture
def serve(timed_port: int) -> Serve:
    """Turns the timed server into one of this behaviour, without a memory: ``serve(ttft=0.1, ...)``."""

    def start(**behaviour: Any) -> Serving:
        serving = Serving(f"http://127.0.0.1:{timed_port}")
        body = json.dumps(behaviour).encode()
        urllib.request.urlopen(f"{serving.url}/timed/behaviour", data=body).close()
        return serving

    return start


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that takes AIPerf's place; see stand_in.py."""
    path = tmp_path_factory.mktemp("bin") / "aiperf"
    path.write_text(f'#!/bin/sh\ncd "{ROOT}" && exec "{sys.executable}" -m tests.bench.stand_in "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def with_stand_in(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truecast.bench.bench.find_aiperf", lambda: stand_in)
    monkeypatch.setattr("truecast.bench.aiperf.POLL_S", 0.1)


def write_prompts(folder: Path, count: int = 200, **keys: Any) -> Path:
    """A file of that many different prompts."""
    path = folder / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"How many primes are below {i}?", **keys}) for i in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in for AIPerf runs in this process, which saves the start of one."""
    monkeypatch.setattr("truecast.bench.bench.find_aiperf", lambda: "")
    monkeypatch.setattr("truecast.bench.bench.version_of", lambda _: "0.13.0")
    monkeypatch.setattr("truecast.bench.bench.run_load", load_in_process)


@pytest.fixture
def measured(tmp_path: Path, in_process: None) -> Callable[..., dict[str, Any]]:
    """Runs bench against a server and returns its document: ``measured(serving, level, requests=..., prompts=...)``."""

    def run(serving: Serving, level: int, prompts: Path | None = None, **options: Any) -> dict[str, Any]:
        options = {"runs": 1, "requests": 3 * level, **options}
        if "duration" in options:
            options["requests"] = None
        file = prompts or write_prompts(tmp_path)
        return bench(serving.url, file, Options(levels=[level], **options), None, ["truecast", "bench"])

    return run


def load_in_process(
    _: str, load: Load, bodies: list[dict[str, Any]], folder: Path, poll: Callable[[int], None]
) -> Path:
    inputs = folder / "inputs.jsonl"
    inputs.write_text("".join(json.dumps(b) + "\n" for b in bodies))
    config = folder / "config.json"
    config.write_text(json.dumps(configuration(load, inputs, folder, folder)))
    poll(-1)  # there is no such group of processes: only the server's metrics are read
    program.main(["profile", "--config", str(config)])
    return folder / RECORDS
