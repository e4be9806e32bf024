"""``truecast launch`` through the command line."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.shaped import kimi_k3

Cli = Callable[..., Any]
NANO = Path(__file__).parents[2] / "examples/nano_k3/checkpoint"


@pytest.fixture(scope="module")
def k3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch") / "a b; touch $(echo owned) 'c'"
    kimi_k3.make(folder)
    return folder


def test_the_trained_model_on_one_gpu(cli: Cli) -> None:
    outcome = cli("launch", NANO, "--topology", "h200:1x1", "--sglang", "0.5.17", "--print")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    start = lines.index("sglang serve \\")
    assert f"  --model-path {NANO} \\" in lines[start:] and "  --port 30000" in lines
    why = outcome.out.partition("\nsetting ")[2]
    assert "--mem-fraction-static" in why and "SGLang 0.5.17, throughput, one replica on 1 GPUs of h200:1x1" in why
    assert "ready after" in why and "plug-in, wanted: fp8-kv-gather" in why


def test_a_hostile_name_is_one_word(k3: Path, cli: Cli) -> None:
    outcome = cli("launch", k3, "--topology", "h200:1x1", "--sglang", "0.5.20")
    command = outcome.out.partition("sglang serve")[2].partition("\n\n")[0].replace("\\\n", "")
    words = shlex.split(command)
    assert words[words.index("--model-path") + 1] == str(k3)
    assert words[words.index("--served-model-name") + 1] == "a-b-touch-echo-owned-c"


def test_json(k3: Path, cli: Cli) -> None:
    document = cli("launch", k3, "--topology", "h200:1x1", "--sglang", "0.5.20", "--json").json
    assert (document["schema"], document["sglang"], document["tp"]) == ("truecast.launch/1", "0.5.20", 1)
    assert document["commands"][0][:4] == ["sglang", "serve", "--model-path", str(k3)]
    assert all(setting["why"] for setting in document["arguments"] + document["environment"])
    assert document["fit"]["fits"] and document["ready"]["seconds"] > 0


def test_remote_code_is_the_users_choice(k3: Path, cli: Cli) -> None:
    arguments = ("launch", k3, "--topology", "h200:1x1", "--sglang", "0.5.20", "--json")
    silent, trusting = cli(*arguments).json, cli(*arguments, "--trust-remote-code").json
    assert "--trust-remote-code" not in silent["commands"][0] and "--trust-remote-code" in trusting["commands"][0]
    assert any("names Python files that could be run: configuration_kimi_k3.py" in note for note in silent["notes"])
    assert any("lets SGLang run the checkpoint's own Python" in note for note in trusting["notes"])


def test_replicas_on_one_node(cli: Cli) -> None:
    outcome = cli("launch", NANO, "--topology", "h200:1x2", "--replicas", "2", "--sglang", "0.5.20")
    assert "# replica 1, on node 0" in outcome.out
    assert "  --port 30001 \\\n  --base-gpu-id 1\n" in outcome.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--topology h200:1x1 --sglang 0.5.1", "SGLang 0.5.1 is not known here, and its arguments are not guessed"),
        ("--topology h900:1x1", "no such GPU: h900"),
        ("--topology h200", "no topology: h200"),
        ("--topology h200:1x8", "do not divide over 8 GPUs"),
        ("--topology h200:1x1 --site-packages EMPTY", "holds no SGLang"),
        ("--topology h200:1x1 --draft /nowhere", "no such draft model"),
    ],
)
def test_bad_input(options: str, message: str, cli: Cli, tmp_path: Path) -> None:
    outcome = cli("launch", NANO, *(tmp_path if word == "EMPTY" else word for word in options.split()))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("truecast launch: ") and message in outcome.err and outcome.err.count("\n") == 1


def test_a_folder_with_control_characters_is_refused(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "K3\nrm"
    kimi_k3.make(folder)
    outcome = cli("launch", folder, "--topology", "h200:1x1", "--sglang", "0.5.20")
    assert outcome.code == 2 and "holds control characters" in outcome.err
