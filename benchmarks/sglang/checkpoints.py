"""nano-K3 in the formats that are served, made by truecast's own commands."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.sglang import draft, subnormal

CALIBRATED_ON = 8
"""Documents that the W4AFP8 activation scales come from; none of them is scored."""

MOVED = {
    "nvfp4-subnormal": subnormal.SMALLEST,
    "nvfp4-globals": subnormal.SMALLEST_NORMAL,
    "nvfp4-globals-high": subnormal.FEW,
}
"""Copies of the NVFP4 checkpoint with other block and global scales: how far down."""


def truecast(*arguments: str | Path) -> None:
    """One command of the CLI. Raises: SystemExit with what it said."""
    command = [sys.executable, "-m", "truecast", *map(str, arguments), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")


def make(names: set[str], source: Path, corpus: Path, out: Path) -> dict[str, Path]:
    """The checkpoints by name, those that lie in ``out`` already taken as they are; and ``draft``."""
    paths = {name: out / name for name in names | {"draft"}}
    paths["mxfp4"] = source

    def one(name: str) -> None:
        to = out / name
        if to.exists():
            return
        if name in ("nvfp4", "bf16"):
            truecast("convert", source, to, "--to", name)
        elif name in MOVED:
            print(f"{name}: {subnormal.make(out / 'nvfp4', to, MOVED[name])}", flush=True)
        elif name.startswith("w4afp8"):
            attention = "fp8" if name.endswith("fp8-attention") else "bf16"
            scales = ("--calibration", calibration, "--rounding", "data-free")
            truecast("convert", source, to, "--to", "w4afp8", *scales, "--attention", attention)
        elif name == "draft":
            draft.make(to)

    out.mkdir(parents=True, exist_ok=True)
    calibration = out / "calibration.safetensors"
    if any(name.startswith("w4afp8") for name in names) and not calibration.exists():
        few = out / "calibration.jsonl"
        few.write_text("".join(corpus.read_text().splitlines(keepends=True)[: 1 + CALIBRATED_ON]))
        truecast("calibrate", source, "--corpus", few, "--out", calibration)
    if names & MOVED.keys():
        one("nvfp4")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, sorted(paths.keys() - {"mxfp4"})))
    return paths
