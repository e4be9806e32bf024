"""The first run: ``python -m examples.smollm2.demo FOLDER``, which is what ``make demo`` does.

Makes the SmolLM2 checkpoint in MXFP4, converts it to NVFP4 in both dialects, shows the report, checks both and proves
both over every block. Each command is printed before it runs, so that it can be run again by hand.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from truecast.checkpoint.source import open_checkpoint
from truecast.layouts.recognise import recognise

TENSOR = "model.layers.0.mlp.gate_proj"
"""The matrix that is proved again from the certificate alone."""


def show(*words: str | Path) -> None:
    """Print a command as it would be typed, then run it. Raises: SystemExit with its exit code if that is not 0."""
    line = [str(word) for word in words]
    print(f"\n$ {shlex.join(line)}", flush=True)
    program = {"python": [sys.executable], "truecast": [sys.executable, "-m", "truecast"]}[line[0]]
    code = subprocess.run([*program, *line[1:]], check=False).returncode
    if code:
        raise SystemExit(code)


def demo(folder: Path) -> None:
    """Run all steps below ``folder``. Raises: SystemExit with the exit code of the first command that fails."""
    source = folder / "SmolLM2-135M-MXFP4"
    outputs = {
        "modelopt": folder / "SmolLM2-135M-NVFP4",
        "compressed-tensors": folder / "SmolLM2-135M-NVFP4-compressed-tensors",
    }
    for out in outputs.values():
        shutil.rmtree(out, ignore_errors=True)  # otherwise `convert` would find its work done
    show("python", "-m", "examples.smollm2.make", source)
    show("truecast", "inspect", source)
    show("truecast", "plan", source, "--to", "nvfp4", "--scan")
    for dialect, out in outputs.items():
        show("truecast", "convert", source, out, "--to", "nvfp4", "--dialect", dialect)
    report = outputs["modelopt"] / "README.md"
    print(f"\nThe report, {report}:\n")
    print(report.read_text(encoding="utf-8").split("---\n", 2)[2])
    for out in outputs.values():
        show("truecast", "check", out)
    for dialect, out in outputs.items():
        show("truecast", "verify", source, out, "--certificate", certificate(folder, dialect))
    show("truecast", "verify", outputs["modelopt"], "--against", certificate(folder, "modelopt"), "--tensor", TENSOR)
    print("\nProved, from the bytes on disk:")
    for dialect, out in outputs.items():
        print(f"  {dialect:20}{proved(source, out, certificate(folder, dialect))}")


def certificate(folder: Path, dialect: str) -> Path:
    """Where a dialect's certificate is written."""
    return folder / f"{dialect}.certificate.json"


def proved(source: Path, out: Path, path: Path) -> str:
    """One line: how much of the source's matrices the certificate covers. Raises: SystemExit(1) if not all of it."""
    counts = json.loads(path.read_bytes())["counts"]
    matrices = recognise(open_checkpoint(source).tensors).matrices.values()
    total = sum(matrix.rows * matrix.cols for matrix in matrices) // 16
    equal = counts["half_blocks"] - counts["inexact_half_blocks"]
    if equal != total or not total:
        print(f"only {equal:,} of {total:,} half blocks of {out} are proved equal", file=sys.stderr)
        raise SystemExit(1)
    return f"{equal:,} of {total:,} half blocks equal (100%), {counts['elements']:,} elements"


def main() -> int:
    """Parse the command line and run. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.smollm2.demo", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for everything that is made")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    demo(folder)
    print(f"\n{time.monotonic() - begun:.0f} s; everything lies in {folder}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
