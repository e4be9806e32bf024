"""The model card of nano-K3 as W4AFP8: ``python -m examples.nano_k3.card [RECORDS]``.

RECORDS is a folder of what was measured, named as the card names its records: ``bench.json``, ``eval.json``, ``audit.json``
of the W4AFP8 checkpoint; ``bench.native.json``, ``eval.NVFP4.json`` and so on of others, by their label; further ones
``eval.2.json``, ``compare.2.json``. Without it the card's own records are taken again. The conversion, its proof
and the launch plan are made anew each time. The result, without weights, goes to ``examples/nano_k3/card``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from examples.smollm2.demo import show

HERE = Path(__file__).parent
CARD = HERE / "card"
KINDS = ("bench", "audit", "eval", "compare")
ANEW = ("verify", "launch")
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


def make(records: Path, folder: Path) -> Path:
    """Convert nano-K3 in ``folder``, prove it, plan its launch, write its card. Returns the checkpoint."""
    out = folder / NAME
    (folder / "nano-K3").symlink_to(HERE / "checkpoint")
    given = [word.replace(str(records), "given") for word in options(records)]
    (folder / "given").symlink_to(records.resolve())
    before = Path.cwd()
    os.chdir(folder)  # so that records hold no place of this machine
    try:
        show("truecast", "convert", "nano-K3", NAME, "--to", "w4afp8")
        for name, words in (("verify", ("nano-K3", NAME)), ("launch", (NAME, "--topology", TOPOLOGY))):
            show("truecast", name, *words, "--json", "--quiet", into=folder / f"{name}.json")
        show("truecast", "card", NAME, "--verify", "verify.json", "--launch", "launch.json", *given)
    finally:
        os.chdir(before)
    return out


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
