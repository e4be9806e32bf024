"""GPUs of this machine as nvidia-smi reports them."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Sequence

from truecast.serve.machine.facts import GpuState

FIELDS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "compute_cap",
    "memory.total",
    "memory.used",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "persistence_mode",
    "mig.mode.current",
    "power.limit",
    "power.default_limit",
)
"""As ``nvidia-smi --help-query-gpu`` names them."""
PROCESSES = ("gpu_uuid", "pid", "used_memory")
PATIENCE = 30.0
"""Seconds to wait: without persistence mode the driver is loaded first."""
_MIB = 1 << 20


def gpus() -> list[GpuState] | None:
    """None where there is no nvidia-smi, where it fails, or where it does not answer in time."""
    rows = _ask(f"--query-gpu={','.join(FIELDS)}")
    if rows is None:
        return None
    return read(rows, _ask(f"--query-compute-apps={','.join(PROCESSES)}") or [])


def read(rows: Sequence[Sequence[str]], processes: Sequence[Sequence[str]]) -> list[GpuState]:
    """Of rows with :data:`FIELDS` and rows with :data:`PROCESSES`; MiB and watts, ``[N/A]`` for what is not known."""
    on: dict[str, list[tuple[int, int]]] = {}
    for uuid, pid, used in (row for row in processes if len(row) == len(PROCESSES)):
        on.setdefault(uuid, []).append((int(_number(pid) or 0), int((_number(used) or 0) * _MIB)))
    return [_state(row, on) for row in rows if len(row) == len(FIELDS)]


def _state(row: Sequence[str], on: dict[str, list[tuple[int, int]]]) -> GpuState:
    field = dict(zip(FIELDS, row, strict=True))
    errors = _number(field["ecc.errors.uncorrected.volatile.total"])
    capability = _number(field["compute_cap"].replace(".", ""))
    return GpuState(
        index=int(_number(field["index"]) or 0),
        name=field["name"],
        driver=field["driver_version"],
        capability=None if capability is None else int(capability),
        memory=int((_number(field["memory.total"]) or 0) * _MIB),
        used=int((_number(field["memory.used"]) or 0) * _MIB),
        processes=tuple(on.get(field["uuid"], ())),
        ecc=_switch(field["ecc.mode.current"]),
        ecc_errors=None if errors is None else int(errors),
        persistent=_switch(field["persistence_mode"]),
        mig=_switch(field["mig.mode.current"]),
        power_limit=_number(field["power.limit"]),
        power_default=_number(field["power.default_limit"]),
    )


def _ask(query: str) -> list[list[str]] | None:
    try:
        said = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [[cell.strip() for cell in row] for row in csv.reader(said.stdout.splitlines())]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text)
