"""The Triton kernel against the CPU's search, bit for bit: on a CUDA device, or else in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = """
import contextlib
import numpy as np
import torch
from truecast.casts import int4, int4_cuda
from truecast.casts.bf16_to_mxfp4 import quantize as to_mxfp4
from truecast.casts.int4_cpu import DEPTH, DEPTH_WEIGHTED

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    torch.cuda.device = lambda _: contextlib.nullcontext()
rng = np.random.default_rng(0)
values = rng.standard_t(3, (8, 1024)) * np.exp(rng.normal(0, 2, (8, 8))).repeat(128, 1)
packed, scales = to_mxfp4(values.astype(np.float32))
scales[0, :4] = [0, 1, 2, 3]  # scales below the smallest normal BF16 would be best
scales[1, :4] = [254, 253, 240, 230]
packed[2, :64] = 0
scales[3, :4], packed[3, :64] = 0, 0x88
packed[4, :64], packed[4, 5] = 0x11, 0x71  # one outlier
wide = rng.integers(0, 255, scales[5:].shape).astype(np.uint8)
least = np.zeros_like(scales[:5])  # the smallest scale is the best of many
packed = np.concatenate([packed, packed[5:], packed[:5]])  # 128 groups, as many as one program takes: its interpreter
scales = np.concatenate([scales, wide, least])  # needs as long for one as for all of them
weights = int4.importance(np.exp(rng.normal(0, 3, 1024)))
for method, given, negative in (
    ("exact", None, True), ("exact", None, False), ("exact", weights, True), ("signed", None, True), ("amax", None, True)
):
    cpu = int4.quantize(packed, scales, method=method, weights=given, negative=negative)
    chosen, depth = (np.ones(1024, np.int64), DEPTH) if given is None else (given, DEPTH_WEIGHTED)
    gpu = int4.Int4Matrix(
        *int4_cuda.quantize(packed, scales, chosen, int4.METHODS.index(method), negative, depth, device)
    )
    for part in ("codes", "scales", "errors", "energies"):
        assert np.array_equal(getattr(cpu, part), getattr(gpu, part)), (method, given is not None, part)
print("equal")
"""


def test_equal_to_the_cpu() -> None:
    import torch

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "equal\n", done.stderr
