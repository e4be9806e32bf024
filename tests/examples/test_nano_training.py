"""The pieces of the training step: rounding, experts, optimizer, and that the loss falls."""

from __future__ import annotations

import itertools
import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("tiktoken")

from examples.nano_k3 import dialogue, vocabulary  # noqa: E402
from examples.nano_k3.data import Kind, assemble  # noqa: E402
from examples.nano_k3.model import Model, StackedExperts, initial, untrained  # noqa: E402
from examples.nano_k3.mxfp4 import rounded  # noqa: E402
from examples.nano_k3.optimizer import Optimizer, orthogonal  # noqa: E402
from examples.nano_k3.shape import TINY  # noqa: E402
from examples.nano_k3.steps import Step  # noqa: E402
from truecast.casts.bf16_to_mxfp4 import quantize  # noqa: E402
from truecast.formats import e2m1, e8m0, packing  # noqa: E402
from truecast.models.experts import Experts, Listed  # noqa: E402
from truecast.models.kimi_k3.activation import situ  # noqa: E402
from truecast.models.kimi_k3.tokenizer import K3Tokenizer  # noqa: E402
from truecast.models.linear import Dense  # noqa: E402
from truecast.models.taps import PLAIN  # noqa: E402

VALUES = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(VALUES, st.sampled_from([0.0, -0.0, 0.25, 5.0, 2.5, 0.75, 2.0**-149])), min_size=32, max_size=32)
)
def test_training_rounds_as_the_cast_does(values: list[float]) -> None:
    weights = np.array([values], np.float32)
    packed, scales = quantize(weights)
    decoded = np.ldexp(e2m1.decode(packing.unpack_nibbles(packed)), scales.astype(np.int32) - e8m0.BIAS)
    got = rounded(torch.from_numpy(weights)).numpy()
    assert (got.view(np.uint32) == decoded.astype(np.float32).view(np.uint32)).all()


def test_stacked_experts_agree_with_the_reference_models() -> None:
    g = torch.Generator().manual_seed(0)
    w1, w3 = torch.randn(5, 24, 16, generator=g), torch.randn(5, 24, 16, generator=g)
    w2 = torch.randn(5, 16, 24, generator=g)
    z, shares = torch.randn(40, 16, generator=g), torch.rand(40, 2, generator=g)
    ids = torch.stack([torch.randperm(5, generator=g)[:2] for _ in range(40)])
    activation = partial(situ, beta=4.0, linear_beta=25.0)
    reference = Experts(Listed([(Dense(w1[e]), Dense(w3[e]), Dense(w2[e])) for e in range(5)]))
    stacked = StackedExperts(w1, w2, w3, grouped=False)
    stacked.load, stacked.live = torch.zeros(5), torch.ones(40)
    stacked.live[30:] = 0
    wanted = reference(z, ids, shares, activation, PLAIN)
    assert torch.allclose(stacked(z, ids, shares, activation, PLAIN), wanted, rtol=1e-4, atol=1e-4)
    assert stacked.load.tolist() == torch.bincount(ids[:30].flatten(), minlength=5).tolist()


def test_grouped_products_agree_with_all_experts_on_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.nano_k3 import model

    def one_after_another(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        bounds = [0, *ends.tolist()]
        return torch.cat([x[a:b] @ w[e] for e, (a, b) in enumerate(itertools.pairwise(bounds))])

    monkeypatch.setattr(model, "_grouped_product", one_after_another)
    g = torch.Generator().manual_seed(1)
    leaves = [torch.randn(*s, generator=g).requires_grad_() for s in ((4, 8, 8), (4, 8, 8), (4, 8, 8), (30, 8))]
    shares = torch.rand(30, 2, generator=g)
    ids = torch.stack([torch.randperm(4, generator=g)[:2] for _ in range(30)])
    activation = partial(situ, beta=4.0, linear_beta=25.0)
    both = []
    for grouped in (False, True):
        out = StackedExperts(*leaves[:3], grouped=grouped)(leaves[3], ids, shares, activation, PLAIN)
        both.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for a, b in zip(*both, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-3)


def test_muon_moves_along_the_singular_vectors() -> None:
    matrix = torch.randn(3, 20, 48, generator=torch.Generator().manual_seed(2))
    sizes = torch.linalg.svdvals(orthogonal(matrix).float())
    assert sizes.min() > 0.5
    assert sizes.max() < 1.4


def test_the_loss_falls_and_padding_is_routed_for_nothing() -> None:
    names = {1792 + place: spelling for place, spelling in vocabulary.SPECIALS.items()}
    tokenizer = K3Tokenizer({bytes([b]): b for b in range(256)} | {b"%d_" % n: 256 + n for n in range(1536)}, names)
    kind, rng = Kind("short", 3, 160, 1.0), random.Random(0)
    rows = []
    while len(rows) < kind.rows:
        ids, written = dialogue.encode(tokenizer, dialogue.draw(rng))
        if len(ids) <= 161:
            rows.append((ids, written))
    parameters = initial(TINY, seed=0)
    trained = {n: p for n, p in parameters.items() if not untrained(n)}
    gradients = {n: torch.zeros_like(p) for n, p in trained.items()}
    model = Model(TINY, parameters, torch.float32)
    step, optimizer = Step(model, kind, gradients), Optimizer(trained, gradients)
    batch = assemble(kind, rows, 2047)
    step.feed(batch)
    losses = []
    for _ in range(3):
        torch._foreach_zero_(list(gradients.values()))
        step.run()
        optimizer.step(5e-3)
        model.refresh()
        losses.append(step.loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert model.load[1:].sum(1).tolist() == [3 * 4 * int(batch.live.sum())] * 3
