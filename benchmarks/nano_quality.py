"""What W4AFP8's rounding rules cost on nano-K3: ``python -m benchmarks.nano_quality KIT FOLDER``.

KIT is the folder of ``examples.nano_k3.data``, whose training text (``text.xz``) gives the documents to calibrate on;
the audit's are the held-out documents of the repository. Everything is made in FOLDER by truecast's own commands, which
are printed; what is there already is used again. Prints a table: mean KL with its interval, and the paired difference to
the default rule under the same activations.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from examples.nano_k3.data import load
from truecast.audit.paired import paired_folders

NANO = Path("examples/nano_k3")
HELD_OUT = NANO / "heldout_documents.jsonl"
DOCUMENTS, TOKENS, SEED = 64, 512, 7

RULES: dict[str, tuple[str, ...]] = {
    "amax / 7": ("--method", "amax"),
    "signed": ("--method", "signed"),
    "exact": ("--rounding", "data-free"),
    "exact, diagonal": ("--rounding", "diagonal"),
    "GPTQ": ("--rounding", "gptq"),
}
"""Casts, all with the calibration's activation scales."""

PLAIN = "exact, scales 1.0"
"""The cast without a calibration."""

RUNS = [*(("none", rule) for rule in RULES), *(("fp8-tensor", rule) for rule in (*RULES, PLAIN))]


def call(*arguments: object) -> None:
    """Run one truecast command, printed."""
    words = [str(a) for a in arguments]
    print("truecast", shlex.join(words), flush=True)
    subprocess.run([sys.executable, "-m", "truecast", *words, "--quiet"], check=True, stdout=subprocess.DEVNULL)


def corpus(kit: Path, out: Path) -> None:
    """The first tokens of some training documents, under the held-out corpus' header."""
    flat, lengths = load(kit / "text.xz")
    ends = np.cumsum(lengths)
    long = np.flatnonzero(lengths >= TOKENS)
    lines = [HELD_OUT.read_text().splitlines()[0]]
    for piece in np.sort(np.random.default_rng(SEED).choice(long, DOCUMENTS, replace=False)):
        start = ends[piece] - lengths[piece]
        lines.append(json.dumps({"id": f"text-{piece}", "tokens": flat[start : start + TOKENS].tolist()}))
    out.write_text("\n".join(lines) + "\n")


def place(folder: Path, activations: str, rule: str) -> Path:
    """Where an audit lies."""
    return folder / f"audit-{activations}-{slug(rule)}"


def slug(rule: str) -> str:
    """A rule as part of a file name."""
    return rule.lower().replace(" / ", "").replace(", ", "-").replace(" ", "-")


def prepare(kit: Path, folder: Path) -> None:
    """Calibration and casts."""
    documents, calibration = folder / "calibration.jsonl", folder / "calibration.safetensors"
    if not documents.exists():
        corpus(kit, documents)
    if not calibration.exists():
        call(
            "calibrate",
            NANO / "checkpoint",
            "--corpus",
            documents,
            "--out",
            calibration,
            "--hessian",
            "--device",
            "cpu",
        )
    for rule, options in {**RULES, PLAIN: ()}.items():
        given = () if rule == PLAIN else ("--calibration", calibration)
        call("convert", NANO / "checkpoint", folder / slug(rule), "--to", "w4afp8", *given, *options, "--jobs", 1)


def figures(folder: Path) -> list[str]:
    """The table, of the audits that are finished."""
    rows = ["| activations | rule | KL, nats per token | 95% interval | less than exact's by | 95% interval |"]
    rows.append("|---|---|---:|---:|---:|---:|")
    for activations, rule in RUNS:
        own, base = (place(folder, activations, name) for name in (rule, "exact"))
        if not all((one / "audit.json").exists() for one in (own, base)):
            continue
        kl = json.loads((own / "audit.json").read_text())["kl"]
        cells = [activations, rule, f"{kl['mean']:.6f}", span(kl["interval"])]
        if rule == "exact":
            rows.append(f"| {' | '.join([*cells, '-', '-'])} |")
            continue
        difference = paired_folders(base, own)["difference"]
        share = 100 * difference["mean"] / json.loads((base / "audit.json").read_text())["kl"]["mean"]
        words = [f"{difference['mean']:+.6f} ({share:+.1f} %)", span(difference["interval"], "+")]
        rows.append(f"| {' | '.join([*cells, *words])} |")
    return rows


def span(ends: Any, sign: str = "") -> str:
    """An interval."""
    return f"{ends[0]:{sign}.6f} to {ends[1]:{sign}.6f}"


def main() -> int:
    """Make what is missing, print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nano_quality", description=__doc__)
    parser.add_argument("kit", type=Path, help="folder with text.xz")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, help="only the first held-out documents")
    parser.add_argument("--jobs", type=int, default=2, help="audits at a time")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    prepare(given.kit, given.folder)
    limit = ("--limit", given.limit) if given.limit else ()

    def audit(run: tuple[str, str]) -> None:
        activations, rule = run
        sides = (NANO / "checkpoint", given.folder / slug(rule))
        more = ("--activations", activations, "--floor-seeds", 0, "--device", "cpu", *limit)
        call("audit", *sides, "--corpus", HELD_OUT, "--out", place(given.folder, activations, rule), *more)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(audit, RUNS))
    print("\n".join(figures(given.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
