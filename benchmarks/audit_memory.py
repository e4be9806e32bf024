"""Audit a model of 1.5 GB of weights within 600 MB of memory: ``python -m benchmarks.audit_memory FOLDER``.

Makes a runnable checkpoint in Kimi-K3's form with random weights in FOLDER, casts it to W4AFP8, and audits one against
the other twice in processes of their own: without a cap and with ``--memory 600MB``. Prints, for each, peak resident
memory as the kernel counts it, seconds, bytes read; then whether every figure of every position is the same.
What is in FOLDER already is used again. Run it where nobody else needs the disk.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from examples.shaped.contents import A_LOG, BIAS, CODES, NORM, SCALES, Spec
from examples.shaped.kimi_k3 import K3Shape, shards
from examples.shaped.kimi_k3_files import small_files
from examples.shaped.shards import write_checkpoint
from truecast.audit.positions import DTYPES, load_array
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.models.tokenizer_hash import tokenizer_files, tokenizer_sha256

SHAPE = K3Shape(
    layers=56,
    experts=64,
    hidden=512,
    latent=512,
    expert_width=512,
    dense_width=1024,
    heads=2,
    head_dim=128,
    q_lora=128,
    kv_lora=128,
    rope_dim=64,
    vocab=2048,
    vision_layers=1,
)
MEMORY = 600 * 10**6
DOCUMENTS, TOKENS = 64, 96


def fill(spec: Spec) -> Iterator[memoryview]:
    """Contents that keep every layer's output of the size of its input; the same for the same name."""
    rng = np.random.default_rng(int.from_bytes(hashlib.blake2b(spec.name.encode(), digest_size=8).digest(), "little"))
    if spec.fill == CODES:
        yield memoryview(rng.integers(0, 256, spec.shape, dtype=np.uint8).tobytes())
        return
    if spec.fill == SCALES:
        yield memoryview(rng.integers(120, 122, spec.shape, dtype=np.uint8).tobytes())
        return
    values = rng.standard_normal(spec.shape, dtype=np.float32)
    if spec.fill == A_LOG:
        values = np.zeros(spec.shape, np.float32)
        values[: spec.limit] = np.log(rng.uniform(0.5, 4, spec.limit))
    elif spec.fill == NORM:
        values = 1 + 0.1 * values
    elif spec.fill == BIAS:
        values = 0.1 * values
    elif "embed_tokens" not in spec.name:
        values = values / np.sqrt(np.float32(spec.shape[-1]))
    yield memoryview(values.astype({"BF16": ml_dtypes.bfloat16, "F32": np.float32}[spec.dtype]).tobytes())


def make(folder: Path) -> tuple[Path, Path, Path]:
    """Reference, candidate and corpus."""
    ref, cand, corpus = folder / "mxfp4", folder / "w4afp8", folder / "docs.jsonl"
    if not corpus.exists():
        for leftover in (ref, cand):
            shutil.rmtree(leftover, ignore_errors=True)
        write_checkpoint(ref, shards(SHAPE), small_files(SHAPE), metadata={}, fill=fill)
        convert(ref, cand, Target("w4afp8"), jobs=2)
        files = tokenizer_files(open_checkpoint(ref))
        rng = np.random.default_rng(0)
        lines: list[dict[str, Any]] = [{"schema": "truecast.corpus/1", "tokenizer_sha256": tokenizer_sha256(files)}]
        lines += [{"id": str(i), "tokens": rng.integers(0, SHAPE.vocab, TOKENS).tolist()} for i in range(DOCUMENTS)]
        corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ref, cand, corpus


def audit(sides: tuple[Path, Path, Path], out: Path, *more: str) -> dict[str, Any]:
    """Run ``truecast audit`` in a process of its own; its document, peak memory and time."""
    shutil.rmtree(out, ignore_errors=True)
    arguments = [str(sides[0]), str(sides[1]), "--corpus", str(sides[2]), "--out", str(out), "--device", "cpu", *more]
    command = [sys.executable, "-m", "truecast", "audit", *arguments, "--floor-seeds", "1", "--quiet"]
    began = time.monotonic()
    child = os.posix_spawn(sys.executable, command, os.environ)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"the audit ended with {os.waitstatus_to_exitcode(status)}")
    document: dict[str, Any] = json.loads((out / "audit.json").read_text())
    return {**document, "peak": usage.ru_maxrss * 1024, "wall": time.monotonic() - began}


def main() -> None:
    """Make, audit twice, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit_memory")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    sides = make(folder)
    sizes = [open_checkpoint(side).total_bytes for side in sides[:2]]
    print(f"weights: {sizes[0] / 1e9:.2f} GB MXFP4, {sizes[1] / 1e9:.2f} GB W4AFP8; {DOCUMENTS} x {TOKENS} tokens")
    for name, more in (("uncapped", ()), ("capped", ("--memory", str(MEMORY)))):
        found = audit(sides, folder / name, *more)
        read = found["read"]
        print(
            f"{name:9} peak {found['peak'] / 1e6:,.0f} MB, {found['wall']:.0f} s, read {read['bytes']:,} bytes ="
            f" {read['bytes'] / read['checkpoint_bytes']:.4f} of the text model, KL {found['kl']['mean']:.6g}"
        )
    arrays = [
        {n: load_array(folder / run / "positions" / f"{n}.npy") for n in DTYPES} for run in ("uncapped", "capped")
    ]
    different = [n for n in DTYPES if not np.array_equal(arrays[0][n], arrays[1][n])]
    widest = max(float(np.abs(arrays[0]["kl"] - arrays[1]["kl"]).max()), 0.0)
    print(f"figures of positions that differ: {', '.join(different) or 'none'}; largest difference of KL {widest:.2g}")


if __name__ == "__main__":
    main()
