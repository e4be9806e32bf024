"""The reference server with nano-K3 and its held-out dialogues: the real thing, in small."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

if any(importlib.util.find_spec(name) is None for name in ("inspect_ai", "torch", "tiktoken")):
    pytest.skip("needs inspect_ai, torch and tiktoken", allow_module_level=True)

from tests.conftest import Outcome
from tests.process import Process

ROOT = Path(__file__).parents[2]
NANO = ROOT / "examples" / "nano_k3"
pytestmark = pytest.mark.filterwarnings("ignore")


def test_held_out_dialogues(
    command: Callable[..., list[str]], environment: dict[str, str], cli: Callable[..., Outcome], tmp_path: Path
) -> None:
    lines = (NANO / "heldout_dialogues.jsonl").read_text().splitlines(keepends=True)
    items = {json.loads(line)["id"]: line for line in lines}
    asked = [items["add-low-000"], items["echo-none-010"]]  # both modes, short: 45 ms of a CPU a token
    (tmp_path / "items.jsonl").write_text("".join(asked))
    arguments = command("serve-reference", NANO / "checkpoint", "--port", 0, "--device", "cpu", "--json")
    with Process(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["url"]
        options = ("--samples", 1, "--temperature", 0, "--max-tokens", 30, "--concurrency", 1)
        outcome = cli(
            *("eval", url, "--task", "dialogues", "--data", tmp_path / "items.jsonl", "--json"),
            *(*options, "--out", tmp_path / "out"),
        )
        process.terminate()
    assert outcome.code == 0, outcome.err
    record = outcome.json
    assert record["server"]["model"] == "checkpoint"
    assert record["scores"]["score"] == 1, record["problems"]
    answers = [problem["samples"][0]["answer"] for problem in record["problems"]]
    assert answers == ["9 + 530 = 539", "VYCLNM"]
    assert record["scores"]["tokens"]["max"] == 24
