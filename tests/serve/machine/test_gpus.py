"""GPUs through a real process that is called nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from truecast.serve.machine import gpus

ROWS = """\
0, GPU-a, NVIDIA H200, 580.65.06, 9.0, 143771, 1024, Enabled, 0, Enabled, Disabled, 700.00, 700.00
1, GPU-b, NVIDIA H200, 580.65.06, 9.0, 143771, 0, Enabled, 3, Disabled, [N/A], [N/A], [Not Supported]
"""
PROCESSES = "GPU-a, 4711, 512\nGPU-a, 4712, [N/A]\n"


def smi(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows").write_text(ROWS)
    (tmp_path / "processes").write_text(PROCESSES)
    body = f'case "$1" in --query-gpu=*) cat {tmp_path}/rows;; --query-compute-apps=*) cat {tmp_path}/processes;; esac'
    smi(tmp_path, body, monkeypatch)
    found = gpus.gpus()
    assert found is not None
    first, second = found
    assert (first.index, first.name, first.driver, first.capability) == (0, "NVIDIA H200", "580.65.06", 90)
    assert (first.memory, first.used) == (143_771 << 20, 1 << 30)
    assert first.processes == ((4711, 512 << 20), (4712, 0))
    assert (first.ecc, first.ecc_errors, first.persistent, first.mig) == (True, 0, True, False)
    assert (first.power_limit, first.power_default) == (700.0, 700.0)
    assert (second.ecc_errors, second.persistent, second.mig, second.power_limit) == (3, False, None, None)
    assert second.processes == ()


@pytest.mark.parametrize("body", ["exit 9", "echo 'NVIDIA-SMI has failed' >&2; exit 1", "exec sleep 30"])
def test_a_tool_that_fails(tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, body, monkeypatch)
    monkeypatch.setattr(gpus, "PATIENCE", 0.3)
    assert gpus.gpus() is None


def test_other_words_than_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, "echo No devices were found", monkeypatch)
    assert gpus.gpus() == []


def test_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.gpus() is None
