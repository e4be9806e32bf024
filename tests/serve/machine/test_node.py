"""Limits, memory, clock and governors of the machine that runs the test."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from truecast.serve.machine import ThisMachine, node

HERE = ThisMachine()


def test_limits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = HERE.limits()
    assert found.files == tuple(None if v == resource.RLIM_INFINITY else v for v in (soft, hard))


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(node, "_GROUP", limit)
    assert HERE.memory() == total << 10
    limit.write_text("max\n")
    assert HERE.memory() == total << 10
    limit.write_text("1048576\n")
    assert HERE.memory() == 1 << 20


def test_clock() -> None:
    found = HERE.clock()
    assert found is None or (isinstance(found.synchronised, bool) and found.error >= 0)


def test_governors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, governor in enumerate(("performance", "powersave", "performance")):
        folder = tmp_path / f"cpu{cpu}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    monkeypatch.setattr(node, "_CPUS", tmp_path)
    assert HERE.governors() == ["performance", "powersave"]
    monkeypatch.setattr(node, "_CPUS", tmp_path / "none")
    assert HERE.governors() == []


def test_a_doctor_needs_no_torch() -> None:
    code = "import sys, truecast.serve.doctor.doctor, truecast.serve.server_info, truecast.serve.machine as m; m.ThisMachine()"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)
