"""The reference server with nano-K3 and its held-out dialogues: the real thing, in small."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai")
pytest.importorskip("torch")
pytest.importorskip("tiktoken")

from tests.conftest import Outcome

ROOT = Path(__file__).parents[2]
NANO = ROOT / "examples" / "nano_k3"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two held-out items with short answers: the server takes about 45 ms a token."""
    lines = (NANO / "heldout_dialogues.jsonl").read_text().splitlines()[:3:2]
    path = tmp_path_factory.mktemp("items") / "items.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def server(command: Callable[..., list[str]], environment: dict[str, str]) -> Iterator[str]:
    arguments = command("serve-reference", NANO / "checkpoint", "--port", 0, "--device", "cpu", "--json")
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        yield ready["url"]
        process.terminate()


def same(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("date", "command")}


def test_a_kill_in_the_middle_changes_nothing(
    server: str,
    items: Path,
    tmp_path: Path,
    cli: Callable[..., Outcome],
    command: Callable[..., list[str]],
    environment: dict[str, str],
) -> None:
    options = ("eval", server, "--task", "dialogues", "--data", items, "--samples", 2, "--max-tokens", 30, "--json")
    whole = cli(*options, "--out", tmp_path / "whole")
    assert whole.code == 0, whole.err
    record = whole.json
    assert record["scores"]["score"] > 0
    assert record["scores"]["tokens"]["max"] <= 30

    kept = tmp_path / "torn" / "dialogues" / "answers.jsonl"
    with subprocess.Popen(
        command(*options, "--out", tmp_path / "torn", "--concurrency", 1), env=environment, stdout=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + 60
        while not (kept.exists() and kept.stat().st_size) and time.monotonic() < end and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    before = kept.read_text().splitlines()
    assert 0 < len(before) < 4
    again = cli(*options, "--out", tmp_path / "torn")
    assert again.code == 0, again.err
    assert same(again.json) == same(record)
    assert kept.read_text().splitlines()[: len(before) - 1] == before[:-1]
