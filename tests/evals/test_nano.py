"""The reference server with nano-K3 and its held-out dialogues: the real thing, in small."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")
pytest.importorskip("torch")
pytest.importorskip("tiktoken")

from tests.conftest import Outcome

ROOT = Path(__file__).parents[2]
NANO = ROOT / "examples" / "nano_k3"
pytestmark = pytest.mark.filterwarnings("ignore")


def test_held_out_dialogues(
    command: Callable[..., list[str]], environment: dict[str, str], cli: Callable[..., Outcome], tmp_path: Path
) -> None:
    lines = (NANO / "heldout_dialogues.jsonl").read_text().splitlines()
    (tmp_path / "items.jsonl").write_text("\n".join([lines[0], lines[2]]))  # short answers: 45 ms of a CPU a token
    arguments = command("serve-reference", NANO / "checkpoint", "--port", 0, "--device", "cpu", "--json")
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["url"]
        options = ("--samples", 2, "--limit", 1, "--temperature", 0, "--max-tokens", 30, "--concurrency", 1)
        outcome = cli(
            *("eval", url, "--task", "dialogues", "--data", tmp_path / "items.jsonl", "--json"),
            *(*options, "--out", tmp_path / "out"),
        )
        process.terminate()
    assert outcome.code == 0, outcome.err
    record = outcome.json
    assert record["server"]["model"] == "checkpoint"
    assert record["scores"]["score"] == 1, record["problems"]
    first, second = (sample["answer"] for sample in record["problems"][0]["samples"])
    assert first == second == "9 + 530 = 539"
    assert record["scores"]["tokens"]["max"] == 24
