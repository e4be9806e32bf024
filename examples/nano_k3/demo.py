"""The first run: ``python -m examples.nano_k3.demo FOLDER``, which is what ``make demo`` does.

Takes nano-K3, a trained model of Kimi-K3's architecture that lies in this repository, the whole way: to NVFP4, which changes
no weight, and to W4AFP8, which changes all experts. Checks and proves both, measures on held-out text what each costs
in nats per token, and asks each of the three the same questions. Each command is printed before it runs, so that it can
be run again by hand.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from examples.smollm2.demo import show

HERE = Path(__file__).parent
SOURCE = HERE / "checkpoint"
DOCUMENTS = HERE / "heldout_documents.jsonl"
DIALOGUES = HERE / "heldout_dialogues.jsonl"
AUDITED = 40
"""So many of the held-out documents are audited: all 111 take three times as long."""
EVERY = 40
"""One in so many of the held-out dialogues is asked."""


def demo(folder: Path) -> None:
    """Run all steps below ``folder``. Raises: SystemExit with the exit code of the first command that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    source = relative(SOURCE)
    show("truecast", "inspect", source)
    results = [cast(folder, source, target) for target in ("nvfp4", "w4afp8")]
    print("\nThe same questions to each, greedy:", flush=True)
    for checkpoint in (source, *(folder / f"nano-K3-{t}" for t in ("nvfp4", "w4afp8"))):
        show(
            "python", "-m", "examples.nano_k3.judge", relative(DIALOGUES), "--checkpoint", checkpoint,
            "--every", str(EVERY), "--least", "0.9", into=folder / f"{checkpoint.name}.answers.json",
        )  # fmt: skip
        answers = json.loads((folder / f"{checkpoint.name}.answers.json").read_bytes())
        print(f"right: {answers['right']['all']:.0%} of {answers['items']}", flush=True)
    print("\nMeasured, on held-out text:")
    for line in results:
        print(f"  {line}")


def cast(folder: Path, source: Path, target: str) -> str:
    """Convert, check, prove and audit one target. Returns what the audit found, as one line."""
    out, audited = folder / f"nano-K3-{target}", folder / f"audit-{target}"
    for made in (out, audited):
        shutil.rmtree(made, ignore_errors=True)  # otherwise the work would be found done
    show("truecast", "convert", source, out, "--to", target)
    show("truecast", "check", out)
    show("truecast", "verify", source, out)
    forced = ["--force", "--floor-seeds", "0"] if target == "nvfp4" else []
    limit = AUDITED // 5 if forced else AUDITED
    corpus = ("--corpus", relative(DOCUMENTS), "--limit", str(limit))
    if forced:
        show("truecast", "audit", source, out, *corpus)  # sees that nothing changed, and measures nothing
    show("truecast", "audit", source, out, *corpus, "--out", audited, *forced)
    return told(target, json.loads((audited / "audit.json").read_bytes()), audited / "audit.html")


def told(target: str, document: dict[str, Any], page: Path) -> str:
    """One line of an audit."""
    kl = document["kl"]
    low, high = kl["interval"]
    return (
        f"{target:7} KL {kl['mean']:.3g} nats per token (95% interval {low:.3g} to {high:.3g}) over {kl['tokens']:,} tokens"
        f" of {kl['documents']} documents: {page}"
    )


def relative(path: Path) -> Path:
    """As it would be typed from here, where it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main() -> int:
    """Run the demo below the folder that is named."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.demo", description=__doc__)
    parser.add_argument("folder", type=Path, help="where everything is written, some 110 MB")
    folder: Path = parser.parse_args().folder
    started = time.monotonic()
    demo(folder)
    print(f"\n{time.monotonic() - started:.0f} s in all. Open the pages in a browser.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
