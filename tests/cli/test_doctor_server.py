"""``truecast doctor --server`` against real HTTP: what the server says is what the checks look at."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.serve.test_server_info import INFO, MODELS, STATE, Route, say, serving
from truecast.cli.main import main


@dataclass(frozen=True)
class Told:
    code: int
    document: dict[str, Any]
    error: str

    def status(self, check: str) -> str:
        (found,) = (f["status"] for f in self.document["findings"] if f["id"] == check)
        return str(found)


def ask(capsys: pytest.CaptureFixture[str], routes: dict[str, Route], *words: str) -> Told:
    with serving(routes) as url:
        code = main(["doctor", "--server", url, "--json", *words])
    out, error = capsys.readouterr()
    return Told(code, json.loads(out) if out else {}, error)


def test_arguments_and_state_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    info = {**INFO, "tp_size": 16, "ep_size": 3, "speculative_algorithm": "DSPARK", "internal_states": [STATE]}
    told = ask(capsys, {"/v1/models": say(MODELS), "/server_info": say(info)})
    assert told.code == 1 and told.document["schema"] == "truecast.doctor/1"
    assert told.status("parallel.ranks") == "FAIL"
    assert told.status("server.engine") == "PASS" and told.status("server.accepted") == "PASS"
    assert told.status("server.requests") == "WARN" and told.status("server.radix-cache") == "WARN"
    assert told.status("network.host-ip") == "SKIP"


def test_a_healthy_server(capsys: pytest.CaptureFixture[str]) -> None:
    info = {**INFO, "disable_radix_cache": True}
    told = ask(capsys, {"/v1/models": say(MODELS), "/get_server_info": say(info)})
    assert told.status("server.memory") == "PASS" and told.status("parallel.ranks") == "PASS"


def test_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    told = ask(capsys, {"/v1/models": say(MODELS), "/version": say({"version": "0.33.0"})})
    assert told.status("server.engine") == "PASS" and told.status("server.memory") == "SKIP"
    assert told.status("parallel.ranks") == "SKIP"


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ({}, "404"),
        ({"/v1/models": say(b"<html>", kind="text/html")}, "no JSON"),
        ({"/v1/models": say(MODELS), "/server_info": say({}, 307, location="http://a.example/")}, "redirects to"),
        ({"/v1/models": say({"error": "Unauthorized"}, 401)}, "401"),
    ],
    ids=["nothing", "html", "redirect", "key"],
)
def test_no_server_to_be_asked(capsys: pytest.CaptureFixture[str], routes: dict[str, Route], words: str) -> None:
    told = ask(capsys, routes)
    assert told.code == 2 and words in told.error and "Traceback" not in told.error
