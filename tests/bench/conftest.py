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

from truecast.bench.bench import bench
from truecast.bench.document import Options

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Serving:
    """A timed server that runs."""

    url: str
    pid: int

    def page(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as answer:
            return json.loads(answer.read())

    def log(self) -> list[dict[str, Any]]:
        """What it served, without the probes."""
        return [s for s in self.page("/timed/log") if s["outcome"] != "probe"]


Serve = Callable[..., Serving]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Starts timed servers: ``serve(ttft=0.1, ...)``."""
    processes = []

    def start(**behaviour: Any) -> Serving:
        command = [sys.executable, "-m", "tests.bench.timed_server", json.dumps(behaviour)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return Serving(f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid)

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that takes AIPerf's place; see recorder.py."""
    program = tmp_path_factory.mktemp("bin") / "aiperf"
    program.write_text(f'#!/bin/sh\ncd "{ROOT}" && exec "{sys.executable}" -m tests.bench.recorder "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def with_stand_in(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truecast.bench.bench.find_aiperf", lambda: stand_in)
    monkeypatch.setattr("truecast.bench.aiperf.POLL_S", 0.05)


def write_prompts(folder: Path, count: int = 200, **keys: Any) -> Path:
    """A file of that many different prompts."""
    path = folder / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"How many primes are below {i}?", **keys}) for i in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def measured(with_stand_in: None, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs bench against a server and returns its document: ``measured(serving, level, requests=..., prompts=...)``."""

    def run(serving: Serving, level: int, prompts: Path | None = None, **options: Any) -> dict[str, Any]:
        options = {"runs": 1, "requests": 3 * level, **options}
        if "duration" in options:
            options["requests"] = None
        file = prompts or write_prompts(tmp_path)
        return bench(serving.url, file, Options(levels=[level], **options), None, ["truecast", "bench"])

    return run
