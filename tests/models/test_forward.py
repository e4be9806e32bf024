"""What others build on: packing of documents, taps, training through the layers, sampling."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from truecast.models import open_model
from truecast.models.experts import Experts, Listed
from truecast.models.generate import Resident, generate, logits, sample
from truecast.models.hidden import Hidden
from truecast.models.kimi_k3.layer import K3Layer
from truecast.models.kimi_k3.moe import Moe
from truecast.models.linear import Dense
from truecast.models.rows import Rows, by_documents


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 30))
def test_rows(lengths: list[int], limit: int) -> None:
    rows = Rows(tuple(lengths))
    x = torch.arange(rows.tokens * 2.0).reshape(-1, 2) + 1
    padded = rows.pad(x)
    assert padded.shape == (len(lengths), max(lengths), 2)
    assert float(padded.sum()) == float(x.sum())
    assert torch.equal(rows.flat(padded), x)
    seen: list[int] = []

    def summed(some: Rows, y: Tensor) -> Tensor:
        seen.extend(some.lengths)
        assert len(some.lengths) == 1 or len(some.lengths) * max(some.lengths) <= limit
        return some.flat(some.pad(y).cumsum(1))

    wanted = torch.cat([part.cumsum(0) for part in torch.split(x, lengths)])
    assert torch.equal(by_documents(rows, limit, summed, x), wanted)
    assert sorted(seen) == sorted(lengths)


class Recording:
    """Taps that remember what they saw."""

    def __init__(self) -> None:
        self.inputs: dict[str, int] = {}
        self.caches: list[tuple[int, tuple[int, ...]]] = []

    def input(self, module: str, x: Tensor, scale: Tensor | None) -> Tensor:
        assert scale is None
        self.inputs[module] = self.inputs.get(module, 0) + x.shape[0]
        return x

    def kv(self, layer: int, x: Tensor) -> Tensor:
        self.caches.append((layer, tuple(x.shape)))
        return x


def test_taps_see_every_quantized_product(k3: Path) -> None:
    taps, model, tokens = Recording(), open_model(k3), torch.arange(24)
    assert torch.equal(logits(model, tokens, taps), logits(model, tokens))
    for layer in range(1, 4):
        bank = f"language_model.model.layers.{layer}.block_sparse_moe.experts."
        for which in ("w1", "w2", "w3"):
            assert sum(n for m, n in taps.inputs.items() if m.startswith(bank) and m.endswith(which)) == 24 * 3
    assert all(".experts." in m for m in taps.inputs)
    assert taps.caches == [(3, (24, 24)), (3, (24, 8))]


def test_taps_get_the_stored_input_scale(k3: Path, tmp_path: Path) -> None:
    from truecast.cli.main import main

    out = tmp_path / "out"
    assert main(["convert", str(k3), str(out), "--to", "w4afp8", "--jobs", "1", "--quiet"]) == 0
    seen = set()

    class Scales(Recording):
        def input(self, module: str, x: Tensor, scale: Tensor | None) -> Tensor:
            assert scale is not None
            assert scale.dtype == torch.float32
            seen.add(float(scale))
            return x

    logits(open_model(out), torch.arange(8), Scales())
    assert seen == {1.0}


@pytest.mark.parametrize("index", [0, 1, 3])
def test_gradients_reach_every_weight(k3: Path, index: int) -> None:
    """Training uses the same code: weights are parameters, and a step down the gradient lowers the loss as it should."""
    layer: K3Layer = open_model(k3, dtype=torch.float64).load_layer(index)  # type: ignore[assignment]
    parameters: list[Tensor] = []

    def trained(tree: object) -> object:
        if isinstance(tree, Tensor):
            parameters.append(tree.double().requires_grad_())
            return parameters[-1]
        if isinstance(tree, Moe):
            bank = tree.experts.bank
            assert isinstance(bank, Listed)
            experts = [tuple(Dense(trained(m.weight())) for m in e) for e in bank.experts]  # type: ignore[arg-type]
            rest = {f.name: trained(getattr(tree, f.name)) for f in dataclasses.fields(tree) if f.name != "experts"}
            return Moe(experts=Experts(Listed(experts)), **rest)  # type: ignore[arg-type]
        if isinstance(tree, tuple):
            return tuple(trained(item) for item in tree)
        if dataclasses.is_dataclass(tree) and not isinstance(tree, type) and tree is not layer.config:
            return dataclasses.replace(
                tree, **{f.name: trained(getattr(tree, f.name)) for f in dataclasses.fields(tree)}
            )
        return tree

    own = trained(layer)
    assert isinstance(own, K3Layer)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(90, 64, generator=g, dtype=torch.float64)
    blocks = (torch.randn(90, 64, generator=g, dtype=torch.float64),) if index else ()

    def loss() -> Tensor:
        return own(Hidden(x, blocks), Rows((55, 35))).stream.sin().mean()

    before = loss()
    before.backward()  # type: ignore[no-untyped-call]
    missing = [p.shape for p in parameters if p.grad is None]
    assert missing == ([] if index == 0 else [(6,)])  # only the router's bias, which is in no weight, has none
    slope = sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None)
    step = 1e-7 / slope**0.5
    with torch.no_grad():
        for p in parameters:
            if p.grad is not None:
                p -= step * p.grad
        assert float(before - loss()) == pytest.approx(step * slope, rel=1e-3)


def test_generation_is_what_the_logits_say(k3: Path) -> None:
    resident = Resident(open_model(k3))
    prompt = [5, 6, 7]
    made = list(generate(resident.session(), prompt, 6))
    for n in range(6):
        assert made[n] == int(logits(resident.model, torch.tensor(prompt + made[:n]))[-1].argmax())
    assert list(generate(resident.session(), prompt, 6, stop=[made[2]])) == made[: made.index(made[2]) + 1]
    assert list(generate(resident.session(), prompt, 0)) == []


def test_sampling() -> None:
    scores = torch.log(torch.tensor([0.1, 0.6, 0.3]))
    assert sample(scores, 0) == 1
    g = torch.Generator().manual_seed(0)
    counts = np.bincount([sample(scores, 1.0, generator=g) for _ in range(2000)], minlength=3) / 2000
    assert np.abs(counts - [0.1, 0.6, 0.3]).max() < 0.04
    assert {sample(scores, 1.0, 0.7, g) for _ in range(200)} == {1, 2}
    assert {sample(scores, 1.0, 0.5, g) for _ in range(50)} == {1}
