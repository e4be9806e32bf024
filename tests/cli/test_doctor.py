"""``truecast doctor`` on the command line: where arguments come from, exit codes, what is printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from examples.shaped import kimi_k3
from tests.serve.doctor.conftest import MakeSite, make_site
from truecast.cli import doctor
from truecast.cli.main import main
from truecast.serve.server_info import ServerFacts

__all__ = ["make_site"]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRUECAST_SGLANG", "SGLANG_EXPERT_LOAD_FILTER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("doctor") / "Kimi-K3"
    kimi_k3.make(folder)
    return str(folder)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str], str]:
    """Exit code, worst status by id, everything printed."""
    code = main(["doctor", "--json", *words])
    printed = capsys.readouterr().out
    document = json.loads(printed)
    assert document["schema"] == "truecast.doctor/1"
    found: dict[str, str] = {}
    for finding in document["findings"]:
        if found.get(finding["id"]) != "FAIL":
            found[finding["id"]] = finding["status"]
    assert document["ok"] == ("FAIL" not in found.values()) == (code == 0)
    assert sum(document["counts"].values()) == len(document["findings"])
    return code, found, printed


def test_arguments_after_two_dashes(make_site: MakeSite, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    site = str(make_site().beside().plugin().root)
    words = ["--site-packages", site, "--for", small, "--topology", "h200:1x8", "--"]
    code, found, _ = told(capsys, *words, "--tp-size", "8", "--moe-runner-backend=marlin", "--dp-siz", "2")
    assert (code == 1 and found["arguments.known"] == "PASS") or found["arguments.known"] == "FAIL"
    code, found, _ = told(capsys, *words, "--tp", "8", "--quantisation", "fp8")
    assert code == 1 and found["arguments.known"] == "FAIL" and found["moe.backend"] == "FAIL"
    code, found, printed = told(capsys, *words, "--tp", "8", "--ep-size", "8", "--moe-runner-backend", "marlin")
    assert found["moe.backend"] == "PASS" and "--ep-size 8" in printed


def test_arguments_of_a_launch_plan(make_site: MakeSite, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    site = str(make_site().beside().plugin().root)
    _, found, _ = told(capsys, "--site-packages", site, "--for", small, "--topology", "h200:1x1")
    assert found["launch.plan"] == "PASS" and found["arguments.known"] == "PASS" and found["moe.backend"] == "PASS"
    code, found, _ = told(capsys, "--site-packages", site, "--for", small, "--topology", "h200:8x8")
    assert code == 1 and found["launch.plan"] == "FAIL" and found["moe.backend"] == "SKIP"


def test_an_unknown_sglang_is_no_error(make_site: MakeSite, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    site = str(make_site().distribution("sglang", "9.9").root)
    _, found, _ = told(capsys, "--site-packages", site, "--for", small, "--topology", "h200:1x1")
    assert found["sglang.version"] == found["launch.plan"] == "UNKNOWN"


def test_what_people_read(make_site: MakeSite, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    site = str(make_site().beside().distribution("torch", "2.0.0").root)
    assert main(["doctor", "--site-packages", site, "--for", small]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL    sglang.torch") and lines[1].startswith("        remedy: install torch==")
    assert lines[-1].startswith("FAIL  ") and "skipped" in lines[-1]
    skips = [line for line in lines if line.startswith("SKIP")]
    assert len({line.partition(": ")[0] for line in skips}) == len(skips)  # each reason once


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--site-packages", "nowhere"], "is no folder"),
        (["--site-packages", "."], "holds no SGLang"),
        (["--for", "nowhere"], "nowhere"),
        (["--draft", "nowhere"], "no such draft model"),
        (["--topology", "z80:1x1"], "no such GPU"),
        (["--server", "http://127.0.0.1:9"], "127.0.0.1:9"),
    ],
)
def test_bad_input(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "environment", "status"),
    [("0.5.20", None, "SKIP"), ("0.5.20", {"SGLANG_HOSTIP": "1"}, "WARN"), ("0.5.23", {"SGLANG_HOSTIP": "1"}, "SKIP")],
)
def test_a_running_server(
    make_site: MakeSite,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    environment: dict[str, str] | None,
    status: str,
) -> None:
    """It has taken its arguments; an SGLang here counts for it only where it is the same."""
    facts = ServerFacts(
        "http://server:30000",
        "sglang",
        version,
        "k3",
        {"--tp-size": "8", "--resolved-only": "x"},
        environment=environment,
    )
    monkeypatch.setattr(doctor, "server_info", lambda url, key: facts)
    monkeypatch.setattr(sys, "path", [*sys.path, str(make_site().beside().root)])
    _, found, _ = told(capsys, "--server", "http://server:30000")
    assert found["arguments.known"] == found["arguments.values"] == "SKIP"
    assert found["sglang.torch"] == ("SKIP" if version == "0.5.23" else "PASS")
    assert found["environment.known"] == status
