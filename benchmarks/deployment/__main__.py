"""``python -m benchmarks.deployment --site SITE --work WORK``: three servers of nano-K3, each measured by the same commands.

Makes NVFP4 and W4AFP8 with ``truecast convert``, serves both and the native MXFP4 with SGLang and the plug-in on one
GPU, and runs ``truecast eval`` (held-out dialogues, eight answers each), ``truecast bench`` (one server at a time),
``truecast corpus`` (what the native server goes on with), ``truecast audit --server`` and ``truecast audit`` on that.
Every command is printed. A step whose record is there is not run again. Exit 1: a command failed. Exit 7: no servers.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.deployment.chat import bodies, chat_folder, starts, write_lines
from benchmarks.deployment.servers import FORMATS, STREAMS, NotReadyError, command, serving
from benchmarks.deployment.table import records, table
from benchmarks.sglang.__main__ import environment, plug
from benchmarks.sglang.runs import Run

ROOT = Path(__file__).parents[2]
NANO = ROOT / "examples" / "nano_k3"
DIALOGUES, DOCUMENTS = NANO / "heldout_dialogues.jsonl", NANO / "heldout_documents.jsonl"
STEPS = ("eval", "bench", "kl", "exact")
NOT_READY = 7
begin = time.monotonic()


def truecast(*arguments: str | Path) -> bool:
    """One command of the CLI, printed with when it ended. Returns: did it do its work?"""
    words = [*map(str, arguments)]
    done = subprocess.run([sys.executable, "-W", "ignore", "-m", "truecast", *words, "--quiet"], capture_output=True)
    print(f"{time.monotonic() - begin:4.0f} s  exit {done.returncode}  truecast {shlex.join(words)}", flush=True)
    if done.returncode:
        print((done.stdout[-800:] + done.stderr[-800:]).decode(errors="replace"), flush=True)
    return done.returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """See above."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deployment", description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help="folder with SGLang 0.5.17 and what it imports")
    parser.add_argument("--work", type=Path, required=True, help="checkpoints, logs and records")
    parser.add_argument("--checkpoint", type=Path, default=NANO / "checkpoint")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--concurrency", default="8,20")
    parser.add_argument("--duration", default="8", help="seconds of a run after its warm-up")
    parser.add_argument("--runs", default="3", help="of a level")
    parser.add_argument("--samples", default="8", help="answers to a dialogue")
    parser.add_argument("--jit", type=Path, help="compiled kernels: TVM_FFI_CACHE_DIR")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--limit", type=float, default=200, help="seconds until the servers answer")
    parser.add_argument("--port", type=int, default=32000)
    options = parser.parse_args(arguments)
    formats, steps = options.formats.split(","), options.steps.split(",")
    if set(formats) - FORMATS.keys() or set(steps) - set(STEPS):
        parser.error(f"formats are {', '.join(FORMATS)}; steps {', '.join(STEPS)}")
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    plug(work / "plug")
    with ThreadPoolExecutor(len(formats)) as pool:
        made = dict(
            zip(
                formats,
                pool.map(lambda name: _checkpoint(name, options.checkpoint.resolve(), work), formats),
                strict=True,
            )
        )
    run = Run("deployment", "", "")  # all fixes of the plug-in, no variable of its own
    env = environment(run, options.site.resolve(), work, options.jit.resolve() if options.jit else None)
    lines = {
        name: command(name, chat_folder(made[name], work / f"chat-{name}"), options.port + 100 * i, options.eager)
        for i, name in enumerate(formats)
    }
    print(f"{time.monotonic() - begin:4.0f} s  checkpoints", flush=True)
    try:
        with serving(lines, env, work, options.limit) as urls:
            print(f"{time.monotonic() - begin:4.0f} s  servers", flush=True)
            fine = _measure(urls, steps, options, work)
    except NotReadyError as error:
        print(error, file=sys.stderr)
        return NOT_READY
    if "exact" in steps:
        for name in formats:
            if name != "mxfp4" and not (out := work / "records" / name / "exact").joinpath("audit.json").exists():
                corpus = ("--corpus", work / "docs.jsonl", "--out", out)
                fine &= truecast("audit", options.checkpoint, made[name], *corpus, "--force")
    print(table({name: records(work / "records" / name) for name in formats}))
    return 0 if fine else 1


def _checkpoint(name: str, source: Path, work: Path) -> Path:
    to = work / f"nano-K3-{name}" if FORMATS[name][0] else source
    if not to.exists() and not truecast("convert", source, to, *FORMATS[name][0]):
        raise SystemExit(1)
    return to


def _measure(urls: dict[str, str], steps: Sequence[str], options: argparse.Namespace, work: Path) -> bool:
    out = {name: work / "records" / name for name in urls}
    for folder in out.values():
        folder.mkdir(parents=True, exist_ok=True)
    fine = True
    if "eval" in steps:
        load = ("--samples", options.samples, "--concurrency", str(STREAMS))
        asked = ("--task", "dialogues", "--data", DIALOGUES, *load)
        with ThreadPoolExecutor(len(urls)) as pool:
            runs = [
                pool.submit(truecast, "eval", url, *asked, "--out", out[name] / "eval") for name, url in urls.items()
            ]
        fine &= all(run.result() for run in runs)
    if "bench" in steps:
        prompts = write_lines(work / "prompts.jsonl", bodies(DIALOGUES))
        for name, url in urls.items():
            if not records(out[name]).get("bench", {}).get("complete"):
                shutil.rmtree(out[name] / "bench", ignore_errors=True)
                load = ("--concurrency", options.concurrency, "--duration", options.duration, "--runs", options.runs)
                asked = ("--prompts", prompts, *load, "--max-tokens", "200", "--temperature", "0")
                fine &= truecast("bench", url, *asked, "--out", out[name] / "bench")
    if "kl" in steps or "exact" in steps:
        corpus = work / "docs.jsonl"
        if not corpus.exists():
            given = write_lines(work / "starts.jsonl", starts(DIALOGUES, DOCUMENTS))
            made = ("--url", f"{urls['mxfp4']}/v1", "--max-tokens", "256", "--seed", "1")
            fine &= truecast("corpus", options.checkpoint, "--prompts", given, "--out", corpus, *made)
    if "kl" in steps:
        for name, url in urls.items():
            if name != "mxfp4":
                sides = ("--reference", options.checkpoint, "--native", urls["mxfp4"], "--corpus", corpus)
                fine &= truecast("audit", "--server", url, *sides, "--out", out[name] / "served")
    return fine


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
