"""How fast and how lean ``convert`` and ``verify`` are, against ``cp``, nvidia-modelopt and compressed-tensors.

    python -m benchmarks.convert disk FOLDER [--runs 5] [--experts 204] [--to nvfp4] [--jobs 2]   # about 20 GB of space
    python -m benchmarks.convert plan FOLDER                              # the full Kimi-K3 as sparse files
    python -m benchmarks.convert peers                                    # CPU seconds on the same matrices

Each prints a Markdown table, and with ``--json FILE`` keeps the raw numbers. ``disk`` alternates ``cp --reflink=never`` +
``sync`` with ``truecast convert`` (and ``verify``) over the same K3-shaped shards, equally many processes on both sides, both
page-cache cold (POSIX_FADV_DONTNEED over source and output, after a ``sync``).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from examples.shaped import kimi_k3
from truecast.checkpoint.header import encode_header
from truecast.convert import Target, convert

MATRIX = (3072, 3584)  # w1 of a Kimi-K3 expert
MATRICES = 16


def main() -> None:
    """Run one of the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("disk", "plan", "peers"))
    parser.add_argument("folder", nargs="?", type=Path, help="where to put the checkpoints (disk, plan)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--experts", type=int, default=204, help="experts a shard; 204 make 4.5 GB")
    parser.add_argument("--to", default="nvfp4", help="target of the conversion (disk)")
    parser.add_argument("--jobs", type=int, default=2, help="processes, and MoE shards (disk)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what != "peers" and args.folder is None:
        parser.error("disk and plan need FOLDER")
    result = {"disk": disk, "plan": full_plan, "peers": lambda _: peers()}[args.what](args)
    result["machine"] = machine()
    print(f"\n{json.dumps(result['machine'])}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What this ran on."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


# --- against cp -------------------------------------------------------------------------------------------------------


def disk(args: argparse.Namespace) -> dict[str, Any]:
    """Time and memory of convert and verify against ``cp`` + ``sync`` of the same bytes."""
    source, out = args.folder / "source", args.folder / "out"
    if not source.exists():
        make_source(source, args.experts, args.jobs)
    shutil.rmtree(out, ignore_errors=True)  # of a run that was broken off
    size = sum(p.stat().st_size for p in source.glob("*.safetensors"))
    rows: dict[str, list[float]] = {"cp": [], "convert": [], "verify": []}
    peak = 0
    for _ in range(args.runs):
        rows["cp"].append(timed(source, out, lambda: copy(source, out, args.jobs)))
        shutil.rmtree(out)
        seconds, memory = truecast(args.jobs, source, out, "convert", str(source), str(out), "--to", args.to)
        rows["convert"].append(seconds)
        peak = max(peak, memory)
        seconds, memory = truecast(args.jobs, source, out, "verify", str(source), str(out))
        rows["verify"].append(seconds)
        peak = max(peak, memory)
        shutil.rmtree(out)
    cp = statistics.median(rows["cp"])
    print(
        f"\n{size / 1e9:.2f} GB in {len(list(source.glob('*.safetensors')))} shards, {args.jobs} processes, {args.runs} runs\n"
    )
    print("| what | median s | spread s | ratio to cp + sync |\n|---|---:|---:|---:|")
    both = [c + v for c, v in zip(rows["convert"], rows["verify"], strict=True)]
    table = {"cp --reflink=never + sync": rows["cp"], "convert": rows["convert"], "convert + verify": both}
    for name, seconds_list in table.items():
        median = statistics.median(seconds_list)
        spread = f"{min(seconds_list):.1f} - {max(seconds_list):.1f}"
        print(f"| {name} | {median:.1f} | {spread} | {median / cp:.2f} |")
    print(f"\npeak sum of PSS over all processes: {peak / 1e6:.0f} MB")
    return {"bytes": size, "seconds": rows, "peak_pss_bytes": peak}


def make_source(folder: Path, experts: int, jobs: int) -> None:
    """Kimi-K3's first layers at true size but for the number of experts: a MoE shard a job, and some small ones."""
    small = {"dense_width": 512, "vocab": 1024, "vision_layers": 1}
    kimi_k3.make(folder, shape=dataclasses.replace(kimi_k3.FULL, layers=jobs + 1, experts=experts, **small))


def copy(source: Path, out: Path, jobs: int) -> None:
    """``cp`` of every shard, ``jobs`` at a time, then ``sync``."""
    out.mkdir()
    with ThreadPoolExecutor(jobs) as pool:
        copies = [["cp", "--reflink=never", str(p), str(out)] for p in sorted(source.glob("*.safetensors"))]
        for done in pool.map(subprocess.run, copies):
            done.check_returncode()
    os.sync()


def timed(source: Path, out: Path, work: Callable[[], None]) -> float:
    """Seconds of ``work`` with source and output out of the page cache."""
    drop_cache([*source.glob("*.safetensors"), *out.glob("*.safetensors")])
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def drop_cache(files: Iterable[Path]) -> None:
    """Write everything back and forget these files' pages."""
    os.sync()
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def truecast(jobs: int, source: Path, out: Path, *command: str) -> tuple[float, int]:
    """Seconds of a truecast command, and the peak of the sum of PSS over its processes in bytes."""
    peak = 0

    def work() -> None:
        nonlocal peak
        argv = [sys.executable, "-m", "truecast", *command, "--jobs", str(jobs), "--quiet"]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            peak = max(peak, sum(pss(pid) for pid in family(process.pid)))
            time.sleep(0.05)
        assert process.returncode == 0
        os.sync()

    return timed(source, out, work), peak


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [p for child in task.read_text().split() for p in family(int(child))]
        except OSError:
            continue
    return found


def pss(pid: int) -> int:
    """Proportional set size of a process in bytes; 0 if it has just ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    line = next((x for x in text.splitlines() if x.startswith("Pss:")), "Pss: 0 kB")
    return int(line.split()[1]) * 1024


# --- the full model, headers only -------------------------------------------------------------------------------------


def full_plan(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds and peak memory of ``inspect`` and ``plan`` on all 497,220 tensors."""
    source = args.folder / "full"
    if not source.exists():
        kimi_k3.make(source, shape=kimi_k3.FULL, sparse=True)
    result: dict[str, Any] = {}
    print("| command | seconds (best to worst) | peak RSS MB |\n|---|---:|---:|")
    for verb in (["inspect"], ["plan", "--to", "nvfp4"]):
        runs = [measured([verb[0], str(source), *verb[1:], "--json"]) for _ in range(min(3, args.runs))]
        seconds, memory = [r[0] for r in runs], max(r[1] for r in runs)
        print(f"| {' '.join(verb)} | {min(seconds):.1f} - {max(seconds):.1f} | {memory / 1e6:.0f} |")
        result[verb[0]] = {"seconds": seconds, "peak_rss_bytes": memory}
    return result


def measured(command: list[str]) -> tuple[float, int]:
    """Seconds and peak RSS in bytes of one truecast command."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "truecast", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - start, usage.ru_maxrss * 1024


# --- CPU time against the peers' own code -----------------------------------------------------------------------------


def peers() -> dict[str, Any]:
    """CPU seconds (user + system, one thread) to recast the same matrices, hashing of the output included everywhere."""
    rows = {
        "truecast convert": in_child(cpu_truecast),
        "nvidia-modelopt: MXFP4 -> BF16 -> NVFP4QTensor.quantize": in_child(cpu_modelopt),
        "compressed-tensors: decompress + compress": in_child(cpu_compressed_tensors),
    }
    size = MATRICES * MATRIX[0] * MATRIX[1] // 2
    ours = rows["truecast convert"]
    print(f"\n{MATRICES} matrices of {MATRIX[0]} x {MATRIX[1]}, {size / 1e6:.0f} MB of packed codes\n")
    print("| path | CPU s | MB of packed codes a CPU second | CPU time, ours = 1 |\n|---|---:|---:|---:|")
    for name, seconds in rows.items():
        print(f"| {name} | {seconds:.2f} | {size / 1e6 / seconds:.1f} | {seconds / ours:.0f} |")
    return {"packed_bytes": size, "cpu_seconds": rows}


def in_child(work: Callable[[Path], float]) -> float:
    """Run in a process of its own, so that no peer's threads or imports count for another."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, Path(folder)).result()


def matrices(folder: Path) -> Path:
    """A shard of Kimi-K3 expert matrices."""
    rng, (rows, cols) = np.random.default_rng(0), MATRIX
    tensors = []
    for i in range(MATRICES):
        name = f"model.layers.1.block_sparse_moe.experts.{i}.w1.weight"
        tensors.append((name + "_packed", "U8", rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8)))
        tensors.append((name + "_scale", "U8", rng.integers(112, 124, (rows, cols // 32), dtype=np.uint8)))
    source = folder / "source"
    source.mkdir()
    header = encode_header([(n, d, a.shape) for n, d, a in tensors], {"format": "pt"})
    (source / "model.safetensors").write_bytes(header + b"".join(a.tobytes() for *_, a in tensors))
    return source


def cpu_truecast(folder: Path) -> float:
    """The whole conversion, reading, writing, hashing and manifest included."""
    source = matrices(folder)
    start = time.process_time()
    convert(source, folder / "out", Target("nvfp4"))
    return time.process_time() - start


def cpu_modelopt(folder: Path) -> float:
    """Model-Optimizer's way: dequantize, closed-form scales, quantize; reading and hashing, no writing."""
    import torch
    from modelopt.torch.quantization.qtensor import MXFP4QTensor, NVFP4QTensor
    from modelopt.torch.quantization.utils import numeric_utils as nu

    def work(packed: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        rows, cols = packed.shape[0], packed.shape[1] * 2
        weight = MXFP4QTensor(torch.Size((rows, cols)), torch.bfloat16, packed)
        bf16 = weight.dequantize(dtype=torch.bfloat16, scale=scale, block_sizes=[32])
        _, info = nu.mxfp4_to_nvfp4_global_amax(scale)
        scale_2 = torch.tensor(2.0 ** (info["k_max"] - nu.E4M3_KMAX))
        amax = nu.mxfp4_to_nvfp4_per_block_amax(packed.view(rows, cols // 32, 16), scale)
        block = (amax / (nu.E2M1_MAX * scale_2)).clamp(min=2.0**nu.E4M3_KMIN, max=nu.E4M3_MAX)
        quantized = NVFP4QTensor.quantize(bf16, 16, block.to(torch.float8_e4m3fn), scale_2, try_tensorrt=False)
        return [quantized[0]._quantized_data, quantized[1]]

    return cpu_of(folder, work)


def cpu_compressed_tensors(folder: Path) -> float:
    """compressed-tensors' way: its MXFP4 decompressor, then its NVFP4 compressor; reading and hashing, no writing."""
    import torch
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    common: dict[str, Any] = {"num_bits": 4, "type": "float", "symmetric": True}
    mx = QuantizationArgs(**common, strategy="group", group_size=32, scale_dtype=torch.uint8)
    nv = QuantizationArgs(**common, strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn)
    mxfp4, nvfp4 = (QuantizationScheme(targets=["Linear"], weights=w) for w in (mx, nv))

    def work(packed: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        weight = MXFP4PackedCompressor.decompress({"weight_packed": packed, "weight_scale": scale}, mxfp4)["weight"]
        exponent = scale.to(torch.int32) - 127
        m = int(exponent.max()) - 8
        block = torch.exp2((exponent - m).float()).repeat_interleave(2, dim=1)
        state = {"weight": weight, "weight_scale": block, "weight_global_scale": torch.tensor([2.0**-m])}
        done = NVFP4PackedCompressor.compress(state, nvfp4)
        return [done["weight_packed"], done["weight_scale"]]

    return cpu_of(folder, work)


def cpu_of(folder: Path, work: Callable[..., list[Any]]) -> float:
    """CPU seconds of a peer's ``work(packed, scale)`` over the matrices, with safetensors reading and sha256."""
    import torch
    from safetensors import safe_open

    torch.set_num_threads(1)
    source, digest = matrices(folder), hashlib.sha256()
    warm = torch.zeros((32, 32), dtype=torch.uint8)
    work(warm, torch.full((32, 2), 120, dtype=torch.uint8))
    start = time.process_time()
    with safe_open(source / "model.safetensors", framework="pt") as file:
        for name in [n for n in file.keys() if n.endswith("_packed")]:  # noqa: SIM118
            outputs = work(file.get_tensor(name), file.get_tensor(name.replace("_packed", "_scale")))
            for tensor in outputs:
                digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return time.process_time() - start


if __name__ == "__main__":
    main()
