"""The same weights with E4M3 block scales moved down: into the subnormals, to the last normal ones, or by 0 to 2 binades.

An NVFP4 weight is code x block scale x global scale. nano-K3's block scales are powers of two within four binades, so 2^s can
be taken from all block scales of a matrix and given to its global scale, and no weight changes. s differs by layer, by expert
and between w1/w3 and w2, which kernels give one global scale.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SMALLEST = 2.0**-9
SMALLEST_NORMAL = 2.0**-6
FEW = 0.0
"""For ``down_to``: no further than the 0 to 2 binades by which the global scales differ."""
EXPERT = re.compile(r"layers\.(\d+)\..*experts\.(\d+)\.(w1|w2|w3)\.weight_scale$")


def exponent(layer: int, expert: int, projection: str, least: float, down_to: float) -> int:
    """s for a matrix whose smallest block scale is ``least``: as far as ``down_to``, less 0 to 2; or these alone."""
    differs = (layer + expert + (projection == "w2")) % 3
    return differs if down_to == FEW else int(math.log2(least / down_to)) - differs


def shift(tensors: Mapping[str, torch.Tensor], down_to: float = SMALLEST) -> tuple[dict[str, torch.Tensor], int, int]:
    """A shard's tensors moved; and how many block scales there are, and how many of them are subnormal now.

    Raises: AssertionError where the weights would change.
    """
    out, total, subnormal = dict(tensors), 0, 0
    for name in tensors:
        if (found := EXPERT.search(name)) is None:
            continue
        layer, expert, projection = int(found[1]), int(found[2]), found[3]
        together = ("w1", "w3") if projection != "w2" else ("w2",)
        stem = name.removesuffix(f"{projection}.weight_scale")
        least = min(float(tensors[f"{stem}{p}.weight_scale"].float().min()) for p in together)
        factor = 2.0 ** exponent(layer, expert, projection, least, down_to)
        old = tensors[name].float()
        out[name] = (old / factor).to(torch.float8_e4m3fn)
        assert torch.equal(out[name].float() * factor, old), f"{name} cannot be moved by {factor}"
        out[name + "_2"] = tensors[name + "_2"] * factor
        total += old.numel()
        subnormal += int((out[name].float() < SMALLEST_NORMAL).sum())
    return out, total, subnormal


def make(source: Path, out: Path, down_to: float = SMALLEST) -> str:
    """Write the moved copy of an NVFP4 checkpoint in ModelOpt's dialect; says what was moved."""
    shutil.copytree(source, out, ignore=shutil.ignore_patterns(".truecast", "truecast.json"))
    total = subnormal = 0
    globals_: dict[int, set[float]] = {}
    for shard in sorted(set(json.loads((source / "model.safetensors.index.json").read_text())["weight_map"].values())):
        tensors, n, low = shift(load_file(source / shard), down_to)
        save_file(tensors, out / shard, metadata={"format": "pt"})
        total, subnormal = total + n, subnormal + low
        for name, tensor in tensors.items():
            if name.endswith(".weight_scale_2") and (layer := re.search(r"layers\.(\d+)\.", name)):
                globals_.setdefault(int(layer[1]), set()).add(float(tensor))
    scales = "; ".join(
        f"layer {i}: {', '.join(f'2^{int(math.log2(s))}' for s in sorted(v))}" for i, v in sorted(globals_.items())
    )
    return f"{subnormal:,} of {total:,} block scales are subnormal; global scales {scales}"
