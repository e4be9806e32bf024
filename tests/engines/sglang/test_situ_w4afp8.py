"""SiTU in W4AFP8, over SGLang's own method and expert functions: SiLU without the fix, SiTU with it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from hypothesis import example, given
from hypothesis import strategies as st

from tests.engines.conftest import Release
from tests.engines.sglang import w4afp8_engine as engine
from truecast.engines.sglang.fixes import situ_w4afp8, w4afp8_config
from truecast.engines.sglang.fixes.situ_w4afp8 import DYNAMIC, EXPERTS, FIX, KERNELS, MASKED, METHOD, STATIC
from truecast.engines.sglang.kernels import situ_fp8_plain
from truecast.engines.sglang.kernels.situ_fp8_plain import Situ
from truecast.engines.sglang.situation import Situation

CONFIG = {"hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0}
K3 = Situation("0.5.17", "k3", "w4afp8", CONFIG)
E4M3 = torch.float8_e4m3fn

# --- when


def test_only_w4afp8_models_with_situ_need_it() -> None:
    need = FIX.need(K3)
    assert need is not None and need.required
    assert FIX.need(Situation("0.5.17", "k3", "modelopt_fp4", CONFIG)) is None
    assert FIX.need(Situation("0.5.17", "deepseek", "w4afp8", {"hidden_act": "silu"})) is None
    with pytest.raises(LookupError, match="no activation_situ_beta"):
        FIX.hooks(Situation("0.5.17", "k3", "w4afp8", {"hidden_act": "situ"}))


def test_the_fault_is_recognised(release: Release) -> None:
    assert FIX.faulty(release.sources)


def test_a_mended_release_is_left_alone(release: Release) -> None:
    looks = "self.moe_runner_config.activation"
    mended = release
    for function in engine.WAYS:
        mended = mended.edited(METHOD, f"= {function}(\n", f"= {function}({looks},\n") if function in engine.WAYS[:1] else (
            mended.edited(METHOD, f" {function}(\n", f" {function}({looks},\n")
        )  # fmt: skip
    assert not FIX.faulty(mended.sources)


@pytest.mark.parametrize(
    ("module", "old", "new", "message"),
    [
        (METHOD, "class W4AFp8MoEMethod", "class Other", "no class W4AFp8MoEMethod"),
        (METHOD, "def apply_deepep_ll", "def apply_other", "no apply_deepep_ll"),
        (EXPERTS, "def cutlass_w4a8_moe_deepep_ll", "def other", "no cutlass_w4a8_moe_deepep_ll"),
        (EXPERTS, "silu_and_mul(c1", "other(c1", "calls no silu_and_mul"),
        (KERNELS, f"def {STATIC}", "def other", f"no {STATIC}"),
    ],
)
def test_other_code_is_not_judged(release: Release, module: str, old: str, new: str, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        FIX.faulty(release.edited(module, old, new).sources)


# --- SGLang's own functions


class Layer:
    """An expert bank of that release with random INT4 experts, and what float64 says of it."""

    def __init__(self, runtime: Any, activation: str, scheme: str = "static") -> None:
        rng = torch.Generator().manual_seed(1)
        self.bank = engine.bank(runtime, runtime.W4AFp8Config(), activation)
        for name, value in self.bank.named_parameters():
            if value.dtype == torch.int8:
                value.data = torch.randint(-128, 128, value.shape, dtype=torch.int8, generator=rng)
            elif "weight_scale" in name:
                value.data = (torch.rand(value.shape, generator=rng) * 0.02 + 0.01).bfloat16().float()
        self.bank.w13_input_scale.data.fill_(0.03125)
        self.bank.w2_input_scale.data.fill_(1.0)
        self.bank.quant_method.process_weights_after_loading(self.bank)
        if scheme == "dynamic":
            self.bank.w13_input_scale = self.bank.w2_input_scale = None
        self.weights = [
            engine._weights(getattr(self.bank, f"{n}_weight"), getattr(self.bank, f"{n}_weight_scale_inv")).double()
            for n in ("w13", "w2")
        ]
        self.x = (torch.randn(9, 256, generator=rng) * 3).bfloat16()
        self.ids = torch.stack([torch.randperm(4, generator=rng)[:2] for _ in range(9)]).int()
        self.ids[2, 1] = self.ids[5] = -1  # experts of another rank
        self.shares = torch.rand(9, 2, generator=rng)

    def expert(self, x: torch.Tensor, number: int, activation: str) -> torch.Tensor:
        gate, up = (x.double() @ self.weights[0][number].T).chunk(2, -1)
        if activation == "situ":
            y = 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)
        else:
            y = gate * torch.sigmoid(gate) * up
        return y @ self.weights[1][number].T

    def truth(self, activation: str) -> torch.Tensor:
        out = torch.zeros(9, 256, dtype=torch.float64)
        for row, (ids, shares) in enumerate(zip(self.ids.tolist(), self.shares, strict=True)):
            for expert, share in zip(ids, shares, strict=True):
                if expert >= 0:
                    out[row] += self.expert(self.x[row], expert, activation) * share
        return out

    def run(self, way: str) -> torch.Tensor:
        method = self.bank.quant_method
        if way == "apply":
            given = SimpleNamespace(hidden_states=self.x, topk_output=(self.shares, self.ids, None))
            return method.apply(self.bank, given).hidden_states
        given = SimpleNamespace(hidden_states=self.x, topk_ids=self.ids, topk_weights=self.shares)
        return method.apply_deepep_normal(layer=self.bank, dispatch_output=given)

    def run_masked(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(what came out, rows of each expert, what went in). Rows past an expert's are NaN."""
        counts = torch.tensor([3, 0, 5, 1], dtype=torch.int32)
        states = torch.full((4, 6, 256), torch.nan).to(E4M3)
        for expert, rows in enumerate(counts.tolist()):
            states[expert, :rows] = torch.randn(rows, 256).to(E4M3)
        scales = torch.full((4, 6, 2), 3.0)
        given = (states, scales, self.ids, self.shares, counts, 4)
        out = self.bank.quant_method.apply_deepep_ll(layer=self.bank, dispatch_output=given)
        return out, counts, states.float() * 3


def apart(out: torch.Tensor, truth: torch.Tensor) -> float:
    return float((out.double() - truth).norm() / truth.norm())


@pytest.fixture
def runtime(release: Release, hook_registry: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return engine.install(release, monkeypatch)


@pytest.mark.parametrize("way", ["apply", "apply_deepep_normal"])
def test_stock_runs_silu_and_the_fix_runs_situ(runtime: Any, hook_registry: Any, way: str) -> None:
    layer = Layer(runtime, "situ")
    stock = layer.run(way)
    assert apart(stock, layer.truth("silu")) < 0.08 < 0.3 < apart(stock, layer.truth("situ"))
    engine.apply(hook_registry, FIX.hooks(K3))
    assert apart(layer.run(way), layer.truth("situ")) < 0.08
    other = Layer(runtime, "silu")  # a model, or a draft model, whose activation is SiLU
    assert torch.equal(other.run(way), stock)
    assert situ_w4afp8._running is None


def test_low_latency_form(runtime: Any, hook_registry: Any) -> None:
    layer = Layer(runtime, "situ")

    def errors(activation: str) -> float:
        torch.manual_seed(3)
        out, counts, given = layer.run_masked()
        pairs = [
            apart(out[e, :n], layer.expert(given[e, :n], e, activation)) for e, n in enumerate(counts.tolist()) if n
        ]
        return max(pairs)

    assert errors("silu") < 0.08 < 0.3 < errors("situ")
    engine.apply(hook_registry, FIX.hooks(K3))
    assert errors("situ") < 0.08


def test_dynamic_scales(runtime: Any, hook_registry: Any) -> None:
    layer = Layer(runtime, "situ", "dynamic")
    stock = layer.run("apply")
    assert apart(stock, layer.truth("silu")) < 0.08 < 0.3 < apart(stock, layer.truth("situ"))
    engine.apply(hook_registry, FIX.hooks(K3))
    assert apart(layer.run("apply"), layer.truth("situ")) < 0.08


def test_dynamic_scales_of_a_batch_of_zeros(release: Release, runtime: Any, hook_registry: Any) -> None:
    layer = Layer(runtime, "situ", "dynamic")
    layer.x.zero_()
    assert bool(layer.run("apply").isnan().any()) is (release.version != "0.5.23")
    dynamic = replace(K3, quantization_config={"moe_activation_scheme": "dynamic"})
    engine.apply(hook_registry, [*FIX.hooks(K3), *w4afp8_config.FIX.hooks(dynamic)])
    assert not layer.run("apply").any()


def test_a_failing_layer_leaves_nothing_behind(runtime: Any, hook_registry: Any) -> None:
    layer = Layer(runtime, "situ")
    engine.apply(hook_registry, FIX.hooks(K3))
    layer.shares = layer.shares[:, :1]
    with pytest.raises(AssertionError, match="topk shape mismatch"):
        layer.run("apply")
    assert situ_w4afp8._running is None


def test_a_layer_without_its_numbers_is_refused(runtime: Any, hook_registry: Any) -> None:
    layer = Layer(runtime, "situ")
    engine.apply(hook_registry, FIX.hooks(K3))
    layer.bank.moe_runner_config.gemm1_alpha = None
    with pytest.raises(RuntimeError, match="activation_situ_beta"):
        layer.run("apply")


def test_selftest_notices_silu(runtime: Any, hook_registry: Any) -> None:
    with pytest.raises(AssertionError, match="static: off by"):
        FIX.selftest(K3)
    engine.apply(hook_registry, FIX.hooks(K3))
    FIX.selftest(K3)


@pytest.mark.parametrize("name", [STATIC, DYNAMIC, MASKED])
def test_selftest_looks_at_every_kernel(runtime: Any, hook_registry: Any, name: str) -> None:
    engine.apply(hook_registry, [h for h in FIX.hooks(K3) if not h.target.endswith(name)])
    with pytest.raises(AssertionError):
        FIX.selftest(K3)


# --- the plain form against the formula

finite = st.floats(-(2.0**127), 2.0**127, width=32).map(lambda v: float(torch.tensor(v).bfloat16()))
usual = st.floats(-60, 60, width=32)
number = st.one_of(usual, finite.filter(math.isfinite))
beta = st.floats(0.25, 64, width=32)


def formula(gate: float, up: float, form: Situ) -> float:
    g, u, b = np.float64(gate), np.float64(up), np.float64(form.beta)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-g))
    if form.linear_beta is not None:
        u = form.linear_beta * np.tanh(u / form.linear_beta)
    return float(b * np.tanh(g / b) * sigmoid * u)


@given(number, number, beta, st.one_of(st.none(), beta), st.floats(2.0**-24, 2.0**10, width=32))
@example(-1e30, 1e30, 4.0, 25.0, 0.05)
@example(0.0, 0.0, 4.0, None, 2.0**-24)
def test_plain_form_is_the_formula_within_half_a_step(
    gate: float, up: float, first: float, second: float | None, scale: float
) -> None:
    form = Situ(first, second)
    out = torch.zeros(1, 1, 1).to(E4M3)
    situ_fp8_plain.quantize(torch.tensor([[[gate, up]]]), out, torch.tensor([scale]), torch.tensor([1]), form)
    wanted = max(-448.0, min(448.0, formula(gate, up, form) / scale))
    step = max(2.0**-9, 2.0 ** (math.floor(math.log2(abs(wanted))) - 3)) if wanted else 2.0**-9
    assert abs(out.item() - wanted) <= step / 2 * (1 + 1e-4)


@given(st.lists(st.tuples(usual, usual), min_size=1, max_size=6), st.integers(0, 7))
def test_dynamic_scale_is_the_largest_of_the_real_rows(pairs: list[tuple[float, float]], count: int) -> None:
    form = Situ(4.0, 25.0)
    scale = torch.full((1,), 7.0)
    x = torch.tensor(pairs)[None]
    situ_fp8_plain.dynamic_scale(x, scale, torch.tensor([count]), form)
    largest = max([abs(formula(g, u, form)) for g, u in x[0, :count].tolist()], default=0.0)
    assert scale.item() == pytest.approx(max(largest, 1e-10) / 448, rel=1e-5)


def test_a_nan_stays_one_and_nothing_else_becomes_one() -> None:
    inf, nan = math.inf, math.nan
    gate = [nan, 1.0, inf, -inf, inf, -inf]
    up = [1.0, nan, inf, inf, -inf, -inf]
    out = torch.zeros(1, 1, 6).to(E4M3)
    situ_fp8_plain.quantize(
        torch.tensor([[gate + up]]), out, torch.tensor([2.0**-20]), torch.tensor([1]), Situ(4.0, 25.0)
    )
    assert out.float()[0, 0].tolist()[2:] == [448.0, 0.0, -448.0, 0.0]
    assert out.float()[0, 0, :2].isnan().all()


# --- the kernel against the plain form

KERNEL = """
import warnings
warnings.simplefilter("ignore")
import torch
from truecast.engines.sglang.kernels import situ_fp8, situ_fp8_plain
from truecast.engines.sglang.kernels.situ_fp8_plain import Situ
device = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter rounds to E4M3 downwards at a new power of two, so there the numbers before that are compared
kind = torch.float8_e4m3fn if device == "cuda" else torch.float32
if device == "cpu":  # and counts with arrays of one number, which new NumPy takes for no index
    import triton.runtime.interpreter as interpreter
    patch = interpreter._patch_lang_tensor
    def patched(tensor, *rest):
        patch(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.item())
    interpreter._patch_lang_tensor = patched
torch.manual_seed(0)

def check(counts, rows, width, form, scales=1):
    x = (torch.randn(len(counts), rows, 2 * width) * 8).bfloat16()
    for number, place in ((float("nan"), 0), (float("inf"), 1), (-float("inf"), 2), (1e-30, 3), (-3e38, 4)):
        x[0, 0, place], x[0, 1, width + place] = number, number
    for e, n in enumerate(counts):
        x[e, n:] = float("nan")  # never to be looked at
    counts = torch.tensor(counts, dtype=torch.int32)
    scale = torch.rand(scales) * 0.3 + 0.01
    wanted = torch.full((len(counts), rows, width), 3.0).to(kind)
    ours = wanted.clone().to(device)  # (another tensor on a CPU too)
    situ_fp8_plain.quantize(x, wanted, scale, counts, form)
    some = x.to(device), ours, scale.to(device), counts.to(device), form
    situ_fp8.launch_quantize(*some)
    a, b = ours.cpu().float(), wanted.float()
    assert torch.equal(a.isnan(), b.isnan())
    apart = (a - b).abs().nan_to_num(0)
    if device == "cuda":
        assert (apart <= b.abs().nan_to_num(0) / 8 + 2.0**-9).all(), apart.max()
        assert (apart > 0).float().mean() < 0.03
    else:
        assert (apart <= b.abs().nan_to_num(0) * 5e-6 + 1e-12).all(), apart.max()
    ones = torch.zeros(1), torch.full((1,), 9.0, device=device)
    situ_fp8_plain.dynamic_scale(x, ones[0], counts, form)
    situ_fp8.launch_dynamic_scale(x.to(device), ones[1], counts.to(device), form)
    assert abs(ones[1].item() / ones[0].item() - 1) < 2e-3, ones

for form in (Situ(4.0, 25.0), Situ(1.5, None)):
    check([7], 9, 24, form)
    check([5], 5, 768, form)
    check([3, 0, 6, 1], 6, 512, form)
    check([2, 4], 4, 256, form, scales=2)
    check([0, 4], 4, 3072, form) if device == "cuda" else None
check([9], 4, 24, Situ(4.0, 25.0))  # a count past the rows there are
print("equal")
"""


def test_kernel() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-c", KERNEL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "equal\n", done.stderr
