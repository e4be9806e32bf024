"""The model card of nano-K3 as W4AFP8: ``python -m examples.nano_k3.card [RECORDS]``.

RECORDS is a folder of what was measured: ``WORK/records`` of ``python -m benchmarks.deployment``, with a folder a format;
or one whose files are named as the card names its records: ``bench.json``, ``eval.json``, ``audit.json`` of the W4AFP8
checkpoint; ``bench.native.json``, ``eval.NVFP4.json`` and so on of others, by their label; further ones ``audit.2.json``.
Without RECORDS the card's own are taken again. The conversion, its proof, the launch plan and the comparisons with
``native`` are made anew each time. An absolute path in a record, which is a place of the machine that measured, is cut to
its last part; nothing else is changed. The result, without weights, goes to ``examples/nano_k3/card``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from examples.smollm2.demo import show

HERE = Path(__file__).parent
CARD = HERE / "card"
KINDS = ("bench", "audit", "eval")
ANEW = ("verify", "launch", "compare")
COMPARED = ("eval", "bench")
BENCHMARK = {
    "bench": "bench/bench.json",
    "eval": "eval/dialogues/eval.json",
    "audit": "served/audit.json",
    "audit.2": "exact/audit.json",
}
"""Records of a format as ``benchmarks.deployment`` leaves them."""
LABELS = {"mxfp4": "native", "nvfp4": "NVFP4", "w4afp8": ""}
NAME = "nano-K3-W4AFP8"
TOPOLOGY = "h200:1x1"


def options(records: Path) -> Iterator[str]:
    """The options of ``truecast card`` for the records in a folder: this checkpoint's first, then label by label.

    Raises: ValueError for a file of another kind.
    """
    for path in sorted(records.glob("*.json"), key=_order):
        kind, label, _ = _named(path)
        if kind in ANEW:
            continue
        if kind not in KINDS:
            raise ValueError(f"{path.name} is none of {', '.join(KINDS)}")
        yield from (f"--{kind}", f"{label}={path}" if label else str(path))


def gather(found: Path, to: Path) -> Path:
    """The records of a benchmark under the names that the card gives them; a folder with such names as it is."""
    to.mkdir()
    if not any((found / name).is_dir() for name in LABELS):
        for path in found.glob("*.json"):
            placeless(path, to / path.name)
        return to
    for folder, label in LABELS.items():
        for name, path in BENCHMARK.items():
            kind, _, number = name.partition(".")
            if (found / folder / path).exists():
                placeless(found / folder / path, to / ".".join(filter(None, (kind, label, number, "json"))))
    return to


def placeless(path: Path, to: Path) -> None:
    """A copy of a record in which each string that is an absolute path has its last part alone."""
    to.write_text(re.sub(r'"/(?:[^"/\\]+/)+([^"/\\]+)"', r'"\1"', path.read_text()))


def make(records: Path, folder: Path) -> Path:
    """Convert nano-K3 in ``folder``, prove it, plan its launch, write its card. Returns the checkpoint."""
    (folder / "nano-K3").symlink_to(HERE / "checkpoint")
    given = gather(records, folder / "given")
    pairs = [(name, given / f"{name}.native.json", given / f"{name}.json") for name in COMPARED]
    pairs = [(name, a, b) for name, a, b in pairs if a.exists() and b.exists()]
    before = Path.cwd()
    os.chdir(folder)  # so that records hold no place of this machine
    try:
        show("truecast", "convert", "nano-K3", NAME, "--to", "w4afp8")
        for name, words in (("verify", ("nano-K3", NAME)), ("launch", (NAME, "--topology", TOPOLOGY))):
            show("truecast", name, *words, "--json", "--quiet", into=Path(f"{name}.json"))
        placeless(Path("launch.json"), Path("launch.json"))  # a plan names the checkpoint by its place
        for name, a, b in pairs:
            sides = (a.relative_to(folder), b.relative_to(folder))
            show("truecast", "compare", *sides, "--json", into=Path(f"compare.{name}.json"))
        compared = [word for name, _, _ in pairs for word in ("--compare", f"compare.{name}.json")]
        made = ("--verify", "verify.json", "--launch", "launch.json", *compared)
        show("truecast", "card", NAME, *made, *options(Path("given")))
    finally:
        os.chdir(before)
    return folder / NAME


def main() -> None:
    """Make the card and put it, its manifest and its records into this repository."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.card", description=__doc__)
    parser.add_argument("records", nargs="?", type=Path, default=CARD / "records", help="folder of records")
    folder = Path(tempfile.gettempdir()) / "nano-K3-card"  # of one name, which the launch plan holds
    folder.mkdir()
    try:
        out = make(parser.parse_args().records.absolute(), folder)
        shutil.rmtree(CARD, ignore_errors=True)
        CARD.mkdir()
        for name in ("README.md", "truecast.json"):
            shutil.copy(out / name, CARD / name)
        shutil.copytree(out / "records", CARD / "records")
    finally:
        shutil.rmtree(folder)


def _named(path: Path) -> tuple[str, str, int]:
    """Kind, label and number of a record, from its name."""
    kind, *rest = path.stem.split(".")
    number = int(rest.pop()) if rest and rest[-1].isdecimal() else 1
    return kind, ".".join(rest), number


def _order(path: Path) -> tuple[bool, str, str, int]:
    """``native`` before other labels, so that it is the first column."""
    kind, label, number = _named(path)
    return label != "native", label, kind, number


if __name__ == "__main__":
    main()
