"""Bytes that each rank reads of a checkpoint, with and without the expert load filter.

``python -m benchmarks.sglang_load_filter [CHECKPOINT] [--ranks 2 4 32] [--gigabytes 1]``

SGLang must be importable (no GPU needed): its own iterators read, its own ``FusedMoE`` says where experts live. CHECKPOINT
is a folder of safetensors shards with ``.experts.N.`` names; without one, a checkpoint of 64 experts with Kimi-K3's matrix
shapes, scaled down to so many gigabytes, is written to a temporary folder. Each reading starts with the shards' pages
dropped from memory and ends with a copy of every tensor that the rank keeps, as a parameter would take it. ``disk`` is
``read_bytes`` of /proc/self/io: what came from storage, with what the kernel read ahead; 0 on a file system that lives in
memory. ``reader`` is the filter's own count.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from truecast.engines.sglang import hooking
from truecast.engines.sglang.expert_shards import EXPERT
from truecast.engines.sglang.fixes import expert_load_filter as fix
from truecast.engines.sglang.situation import Situation

EXPERTS = 64


def write(folder: Path, gigabytes: float) -> None:
    """64 experts in shards of eight, sizes in the ratios of Kimi-K3's MXFP4 (codes and a scale to 16 bytes of codes)."""
    one = int(gigabytes * 1e9 / EXPERTS / 3)
    columns = 1792
    rows = max(1, one * 16 // 17 // columns)
    for shard in range(EXPERTS // 8):
        tensors = {}
        for e in range(8 * shard, 8 * shard + 8):
            for name in ("w1", "w2", "w3"):
                stem = f"model.layers.1.block_sparse_moe.experts.{e}.{name}"
                tensors[f"{stem}.weight_packed"] = torch.randint(0, 256, (rows, columns), dtype=torch.uint8)
                tensors[f"{stem}.weight_scale"] = torch.randint(0, 256, (rows, columns // 16), dtype=torch.uint8)
        tensors[f"model.layers.1.other.{shard}.weight"] = torch.zeros(512, 1792, dtype=torch.bfloat16)
        save_file(tensors, folder / f"model-{shard:05}.safetensors")


def layers(experts: int, rank: int, ranks: int) -> torch.nn.Module:
    """One expert layer of SGLang's class that knows its place and holds no weights."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    class Layer(torch.nn.Module):
        layer_id, _has_fused_shared, _num_global_routed = 0, False, experts

    setattr(Layer, fix._PLACE, getattr(FusedMoE, fix._PLACE))
    layer = Layer()
    layer._expert_storage_rank = layer.moe_ep_rank = rank  # type: ignore[assignment]
    layer._num_local_routed = experts // ranks  # type: ignore[assignment]
    return torch.nn.ModuleList([layer])


def forget(files: list[str]) -> None:
    """Drop the shards' pages from memory."""
    for name in files:
        with Path(name).open("r+b" if os.access(name, os.W_OK) else "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def from_storage() -> int:
    """Bytes that this process has had read from storage so far."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["read_bytes"])


def load(loader: Any, files: list[str], model: torch.nn.Module, local: Any, way: tuple[str, dict[str, Any]]) -> Any:
    """One rank's reading. Returns bytes from storage, bytes kept and seconds."""

    class Here(loader.DefaultModelLoader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None: ...
        def _get_weights_iterator(self, source: Any) -> Iterator[Any]:
            return getattr(loader, way[0])(files, **way[1])  # type: ignore[no-any-return]

    init_new, loader.DefaultModelLoader.Source.init_new = loader.DefaultModelLoader.Source.init_new, lambda *a: None
    forget(files)
    before, start, kept = from_storage(), time.perf_counter(), 0
    try:
        for name, tensor in Here()._get_all_weights(None, model):
            if (match := EXPERT.search(name)) is None or local(int(match[1])):
                kept += tensor.clone().untyped_storage().nbytes()
    finally:
        loader.DefaultModelLoader.Source.init_new = init_new
    return SimpleNamespace(disk=from_storage() - before, kept=kept, seconds=time.perf_counter() - start)


def main() -> int:
    """Print the table and one line of JSON. Returns 1 if a rank reads more than 1/ranks of the experts and 2 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 32])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where the temporary checkpoint is written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = options.checkpoint or Path(scratch)
        if options.checkpoint is None:
            write(folder, options.gigabytes)
        return measure(folder, options.ranks)


def measure(folder: Path, splits: list[int]) -> int:
    """All splits of one checkpoint, first and last rank of each."""
    from sglang.srt.model_loader import loader

    files = sorted(str(p) for p in folder.glob("*.safetensors"))
    numbers, experts, others = set(), 0, 0
    for name in files:
        with safe_open(name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118
                part = file.get_slice(key)
                size = int(torch.empty(part.get_shape(), dtype=file.get_tensor(key).dtype, device="meta").nbytes)
                match = EXPERT.search(key)
                experts, others = experts + size * bool(match), others + size * (not match)
                numbers |= {int(match[1])} if match else set()
    count = len(numbers)
    print(
        f"{folder.name}: {len(files)} shards, {count} experts of {experts / 1e6:.1f} MB in all, others {others / 1e6:.1f} MB"
    )
    print(f"{'way':22} {'ranks':>5} {'rank':>4} | {'reader, MB':>10} {'disk, MB':>9} {'stock, MB':>9} |"
          " experts read: share, most allowed | s, stock s")  # fmt: skip
    ways = {"one thread": (fix.ITERATORS[0], {}), "eight threads": (fix.ITERATORS[1], {"max_workers": 8})}
    rows, bad, stock = [], 0, {}
    cases = [(w, n, r) for w in ways for n in splits if count % n == 0 for r in (0, n - 1)]
    for way, n, rank in cases:
        local = range(rank * count // n, (rank + 1) * count // n).__contains__
        stock[way, n, rank] = load(loader, files, layers(count, rank, n), local, ways[way])
    situation = Situation(version="", model=str(folder), config={"num_experts": count}, ep_size=2)
    hooking.put_on(fix.FIX.hooks(situation))
    fix.FIX.selftest(situation)
    for way, n, rank in cases:
        model = layers(count, rank, n)
        mine = fix.reading(model)
        assert mine is not None
        got = load(loader, files, model, mine.local, ways[way])
        for name in files:
            with mine.open(name):
                pass
        before = stock[way, n, rank]
        assert got.kept == before.kept, "the filter lost something"
        # what the storage read beyond the tensors that are no experts'; a file system in memory shows nothing
        share = max(mine.experts - mine.skipped, got.disk - others) / experts
        bad += share > 1 / n + 0.02
        rows.append({"way": way, "ranks": n, "rank": rank, "experts": experts, "others": others, "reader": mine.read,
                     "disk": got.disk, "stock_disk": before.disk, "share": share, "seconds": got.seconds,
                     "stock_seconds": before.seconds})  # fmt: skip
        print(f"{way:22} {n:5} {rank:4} | {mine.read / 1e6:10.1f} {got.disk / 1e6:9.1f} {before.disk / 1e6:9.1f} |"
              f" {'' if share <= 1 / n + 0.02 else 'TOO MUCH '}{share:19.4f} {1 / n + 0.02:13.4f} |"
              f" {got.seconds:6.2f} {before.seconds:6.2f}")  # fmt: skip
    print(json.dumps({"benchmark": "sglang_load_filter", "checkpoint": folder.name, "rows": rows}))
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
