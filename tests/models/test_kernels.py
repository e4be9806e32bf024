"""The Triton kernels against what they stand for: on a CUDA device, or else in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

HEAD = """
import warnings
warnings.simplefilter("ignore")
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
"""

DECODE = """
from truecast.models.decode import decode
from truecast.models import decode_cuda
from truecast.models.decode_cuda import decode_into

if device == "cpu":
    decode_cuda._BYTES = 1 << 16  # the interpreter takes as long for a small program as for a large one

def check(kind, codes, scale, factor=None, divides=False):
    out = torch.empty(codes.shape[0], 2 * codes.shape[1], dtype=torch.bfloat16, device=device)
    decode_into(out, kind, codes.to(device), scale.to(device), 1.0 if factor is None else factor, divides)
    wanted, ours = decode(kind, codes, scale, (1, 0), factor, divides, torch.bfloat16), out.cpu()
    nan = wanted.isnan()
    assert torch.equal(nan, ours.isnan()), kind
    wanted, ours = (x.masked_fill(nan, 0).view(torch.int16) for x in (wanted, ours))
    assert torch.equal(ours, wanted), (kind, factor, divides, (ours != wanted).nonzero()[:3])

every = torch.arange(256, dtype=torch.uint8)
codes = every.repeat(256, 1)
check("mxfp4", codes, every[:, None].repeat(1, 16))
for factor in (1.0, 2.0**-9, float(torch.tensor(0.0037)), 1.75):
    for divides in (False, True):
        check("nvfp4", codes, every[:, None].repeat(1, 32), factor, divides)
check("w4afp8", codes[:9], torch.randn(9, 4).bfloat16())
check("w4afp8", codes[:9], torch.randn(9, 4))

from truecast.models import packed
for kind, group, factor in (("mxfp4", 32, None), ("nvfp4", 16, 0.0037), ("w4afp8", 128, None)):
    scale = every[:9, None].repeat(1, 512 // group)
    if kind == "w4afp8":
        scale = scale.bfloat16()
    some = codes[:9].to(device), scale.to(device)
    matrix = packed.Packed("m", kind, 9, 512, *some, (1, group), torch.bfloat16, factor, True)
    packed.suits = lambda *tensors: False
    wanted = matrix.weight()
    packed.suits = lambda *tensors: True
    torch.testing.assert_close(matrix.weight(), wanted, rtol=2.0**-8, atol=0)
print("equal")
"""

SUMS = """
from truecast.models.experts_cuda import add_weighted
for width in (24, 1500):
    sums, tokens, shares = torch.randn(50, width), torch.randperm(50)[:20], torch.rand(20)
    values = torch.randn(20, width).bfloat16()
    wanted = sums.clone().index_add_(0, tokens, values.float() * shares[:, None])
    ours = sums.to(device)
    add_weighted(ours, tokens.to(device), shares.to(device), values.to(device))
    torch.testing.assert_close(ours.cpu(), wanted, rtol=0, atol=1e-6)

from truecast.models import experts
from truecast.models.linear import Dense
from truecast.models.taps import PLAIN
def random(*shape):
    return (torch.randn(shape) / 4).to(device)
bank = experts.Listed([(Dense(random(24, 16)), Dense(random(24, 16)), Dense(random(16, 24))) for _ in range(5)])
ids = torch.stack([torch.randperm(5)[:2] for _ in range(30)]).to(device)
given = random(30, 16), ids, random(30, 2), lambda gate, up: gate * up, PLAIN
results = []
for fast in (False, True):
    experts.suits = lambda *tensors: fast
    results.append(experts.Experts(bank)(*given))
torch.testing.assert_close(*results, rtol=0, atol=1e-5)
print("equal")
"""

KDA = """
if device == "cpu":  # the interpreter counts with arrays of one number, which new NumPy takes for no index
    import triton.runtime.interpreter as interpreter
    patch = interpreter._patch_lang_tensor
    def patched(tensor, *rest):
        patch(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.item())
    interpreter._patch_lang_tensor = patched
from truecast.models.kimi_k3 import kda_cuda
from truecast.models.kimi_k3.kda import _unit, log_decay, short_convolution
from truecast.models.kimi_k3.kda_recurrent import recurrent

def on(x, dtype):
    return [on(y, dtype) for y in x] if isinstance(x, list) else None if x is None else x.to(device, dtype)

def check(batch, tokens, heads, width, later, repeated=False):
    inner = heads * width
    def normal(*shape):
        return torch.randn(shape).bfloat16().double()
    projected = [normal(batch, tokens, inner) for _ in "qkv"]
    if repeated:  # one key over and over, hardly forgotten
        projected[1] = projected[1][:, :1].expand(-1, tokens, -1)
    convolutions = [normal(inner, 4) for _ in "qkv"]
    tails = [normal(batch, 3, inner) for _ in "qkv"] if later else []
    raw = normal(batch, tokens, inner) * 3 - 20 * repeated
    logits, a_log, dt_bias = normal(batch, tokens, heads) + 6 * repeated, normal(heads), normal(inner)
    state = normal(batch, heads, width, width) if later else None
    some = [projected, convolutions, tails, raw, logits, a_log, dt_bias, state]
    ours = kda_cuda.attend(*on(some, torch.float32), -5.0, 1e-6)
    mixed = [short_convolution(x, w, t)[0].reshape(batch, tokens, heads, width)
             for x, w, t in zip(projected, convolutions, tails or [None] * 3)]
    decay = log_decay(raw.reshape(batch, tokens, heads, width), a_log, dt_bias, -5.0)
    q, k = _unit(mixed[0]) * width**-0.5, _unit(mixed[1])
    wanted = recurrent(q, k, mixed[2], decay, logits.sigmoid(), state)
    for a, b in zip(ours, wanted):
        apart = float((a.cpu().double() - b).abs().max() / b.abs().max())
        assert apart < 1e-5, (batch, tokens, heads, width, apart)

def layers_agree():
    # the layer with the kernel against the layer without, documents side by side and one in pieces
    from types import SimpleNamespace
    from truecast.models.kimi_k3 import kda
    from truecast.models.linear import Dense
    from truecast.models.rows import Rows
    from truecast.models.taps import PLAIN
    def random(*shape):
        return (torch.randn(shape) / shape[-1] ** 0.5).to(device)
    shapes = [(32, 24)] * 4 + [(8, 24), (32, 8), (2, 24), (24, 32)]
    convolutions = tuple(random(32, 4) for _ in "qkv")
    w = kda.Kda(*(Dense(random(*shape)) for shape in shapes), convolutions, random(2), random(32), random(16))
    config = SimpleNamespace(kda_heads=2, kda_head_dim=16, gate_lower_bound=-5.0, conv_taps=4, eps=1e-5)
    results = []
    for kernel in (False, True):
        kda._kernel_suits = lambda q, *rest: kernel and q.shape[1] > 1
        torch.manual_seed(1)
        side = kda.attention(random(34, 24), w, config, Rows((9, 20, 5)), PLAIN, None)
        cache = kda.KdaCache()
        pieces = [kda.attention(random(n, 24), w, config, Rows((n,)), PLAIN, cache) for n in (2, 19, 1, 4)]
        results.append(torch.cat([side, *pieces]))
    torch.testing.assert_close(*results, rtol=0, atol=2e-5)

layers_agree()
if device == "cpu":
    kda_cuda._VALUES = 16  # two programs a head where the width is 32
check(2, 37, 3, 16, False)
check(1, 2, 1, 16, True)
check(2, 18, 1, 32, True)
check(1, 40, 1, 16, False, True)
if device == "cuda":
    check(2, 1000, 4, 128, True)
    check(1, 1000, 4, 128, False, True)
    check(3, 100, 96, 128, False)
print("equal")
"""


@pytest.mark.parametrize("program", [DECODE, SUMS, KDA], ids=["decode", "sums", "kda"])
def test_kernel(program: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "equal\n", done.stderr
