"""The first run: ``python -m examples.smollm2.demo FOLDER``, which is what ``make demo`` does.

Makes the SmolLM2 checkpoint in MXFP4, converts it to NVFP4 in both dialects, shows the report, checks both and proves
both over every block. Then makes a mixture of experts shaped like Kimi-K3 out of SmolLM2's matrices, converts it to
W4AFP8, checks it and lets ``verify`` measure how far it is off. Each command is printed before it runs, so that it can
be run again by hand.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from truecast.checkpoint.source import open_checkpoint
from truecast.layouts.recognise import recognise

TENSOR = "model.layers.0.mlp.gate_proj"
"""The matrix that is proved again from the certificate alone."""


def show(*words: str | Path, into: Path | None = None) -> None:
    """Print a command as it would be typed, then run it, with its output ``into`` a file where one is named.

    Raises: SystemExit with its exit code if that is not 0.
    """
    line = [str(word) for word in words]
    print(f"\n$ {shlex.join(line)}{f' > {shlex.quote(str(into))}' if into else ''}", flush=True)
    program = {"python": [sys.executable], "truecast": [sys.executable, "-m", "truecast"]}[line[0]]
    with into.open("wb") if into else nullcontext() as file:
        code = subprocess.run([*program, *line[1:]], check=False, stdout=file).returncode
    if code:
        raise SystemExit(code)


def demo(folder: Path) -> None:
    """Run all steps below ``folder``. Raises: SystemExit with the exit code of the first command that fails."""
    proofs = [*nvfp4(folder), *w4afp8(folder)]
    print("\nProved, from the bytes on disk:")
    for what, result in proofs:
        print(f"  {what:27}{result}")


def nvfp4(folder: Path) -> list[tuple[str, str]]:
    """SmolLM2 to NVFP4, exactly. Returns what was proved."""
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
    return [(f"NVFP4 {dialect}", proved(source, out, certificate(folder, dialect))) for dialect, out in outputs.items()]


def w4afp8(folder: Path) -> list[tuple[str, str]]:
    """The mixture of experts to INT4 weights with FP8 activations, with the least error. Returns what was measured."""
    source, out, verdict = folder / "SmolLM2-MoE-MXFP4", folder / "SmolLM2-MoE-W4AFP8", folder / "w4afp8.verify.json"
    for made in (source, out):
        shutil.rmtree(made, ignore_errors=True)
    show("python", "-m", "examples.smollm2.moe", source)
    show("truecast", "plan", source, "--to", "w4afp8")
    show("truecast", "convert", source, out, "--to", "w4afp8")
    show("truecast", "check", out)
    show("truecast", "verify", source, out)
    show("truecast", "verify", source, out, "--json", into=verdict)
    quality = json.loads(verdict.read_bytes())["quality"]
    experts, attention = quality["int4"], quality["fp8"]
    return [
        (
            "W4AFP8 experts",
            f"{experts['matrices']} matrices, SQNR {experts['sqnr_db']:.2f} dB, relative error"
            f" {experts['relative_error']:.2%}; {experts['nearest']:,} of {experts['elements']:,} codes are nearest,"
            f" {experts['unbeaten']:,} of {experts['groups']:,} scales have no better neighbour",
        ),
        (
            "W4AFP8 attention",
            f"{attention['matrices']} matrices in FP8, SQNR {attention['sqnr_db']:.2f} dB, relative error"
            f" {attention['relative_error']:.2%}",
        ),
    ]


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
