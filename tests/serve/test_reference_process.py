"""The command itself: a real process on a real checkpoint, ended by signals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.conftest import Outcome
from tests.models.tiny_k3 import make_tiny_k3
from tests.process import Process


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_k3(tmp_path_factory.mktemp("process") / "tiny-k3")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_serves_and_a_signal_ends_it_amid_a_request(
    checkpoint: Path, command: Callable[..., list[str]], environment: dict[str, str], sent: int, code: int
) -> None:
    arguments = command("serve-reference", checkpoint, "--port", 0, "--device", "cpu", "--json")
    with Process(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        assert ready["schema"] == "truecast.serve-reference/1"
        assert ready["model"] == "tiny-k3"
        assert ready["url"].startswith("http://127.0.0.1:")
        body = {"model": "tiny-k3", "messages": [{"role": "user", "content": "hi"}], "stream": True, "seed": 1}
        with httpx.stream("POST", f"{ready['url']}/chat/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: {")
            process.send_signal(sent)
            assert "shutting down" in "".join(lines)
        assert process.wait(30) == code
        errors = process.stderr.read()
    assert "Traceback" not in errors
    if code == 0:
        assert errors == ""


def test_an_address_in_use(checkpoint: Path, cli: Callable[..., Outcome]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = cli("serve-reference", checkpoint, "--port", taken.getsockname()[1])
    assert outcome.code == 2
    assert "cannot listen: Address already in use; choose another --port\n" in outcome.err


def test_a_host_that_is_not_here(checkpoint: Path, cli: Callable[..., Outcome]) -> None:
    outcome = cli("serve-reference", checkpoint, "--host", "192.0.2.1")
    assert outcome.code == 2
    assert outcome.err.endswith("cannot listen: Cannot assign requested address; choose another --host\n")


def test_no_checkpoint(tmp_path: Path, cli: Callable[..., Outcome]) -> None:
    outcome = cli("serve-reference", tmp_path / "none", "--port", 0)
    assert (outcome.code, "no such file" in outcome.err) == (2, True)
    assert cli("serve-reference", tmp_path, "--port", 70000).code == 2


def test_a_checkpoint_without_a_tokenizer(tmp_path: Path, cli: Callable[..., Outcome]) -> None:
    folder = make_tiny_k3(tmp_path / "tiny")
    (folder / "tiktoken.model").unlink()
    outcome = cli("serve-reference", folder, "--port", 0)
    assert (outcome.code, "tiktoken.model" in outcome.err) == (2, True)


@pytest.mark.parametrize("package", ["uvicorn", "fastapi", "torch"])
def test_a_missing_package_is_named(
    package: str, tmp_path: Path, cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.startswith("truecast.serve.reference")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    outcome = cli("serve-reference", tmp_path)
    assert outcome.code == 2
    assert outcome.err == (
        f"truecast serve-reference: serve-reference needs the package {package}; pip install 'truecast[serve]'\n"
    )
