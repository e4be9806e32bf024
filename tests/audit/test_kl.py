"""The divergence against a plain log-softmax, however the vocabulary is tiled."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from truecast.audit.kl import divergence


def sides(seed: int, rows: int, vocab: int, spread: float, dtype: torch.dtype) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    h, w = (torch.randn(n, 12, generator=random, dtype=dtype) * spread for n in (rows, vocab))
    g, v = (t + 0.05 * torch.randn(t.shape, generator=random, dtype=dtype) for t in (h, w))
    return [h, w, g, v]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 6), st.integers(2, 50), st.integers(1, 60), st.sampled_from([0.01, 1.0, 6.0])
)
def test_it_is_the_definition(seed: int, rows: int, vocab: int, tile: int, spread: float) -> None:
    h, w, g, v = sides(seed, rows, vocab, spread, torch.float64)
    labels = torch.randint(vocab, (rows,), generator=torch.Generator().manual_seed(seed))
    found = divergence((h, w), (g, v), [g], labels, tile)
    a, b, n = (torch.log_softmax(x @ y.T, 1) for x, y in ((h, w), (g, v), (g, w)))
    top = a.topk(2, 1).values
    at = torch.arange(rows)
    expected = {
        "kl": (a.exp() * (a - b)).sum(1),
        "reverse_kl": (b.exp() * (b - a)).sum(1),
        "nll_ref": -a[at, labels],
        "nll_cand": -b[at, labels],
        "ref_margin": top[:, 0] - top[:, 1],
        "ref_top_prob": top[:, 0].exp(),
        "floor": (a.exp() * (a - n)).sum(1)[None],
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(found, name), value, atol=1e-9, rtol=1e-9)
    assert found.same_top.tolist() == (a.argmax(1) == b.argmax(1)).tolist()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 60), st.sampled_from([torch.float32, torch.bfloat16]))
def test_equal_sides_differ_by_exactly_nothing(seed: int, tile: int, dtype: torch.dtype) -> None:
    h, w, _, _ = sides(seed, 5, 50, 3.0, torch.float32)
    h, w = h.to(dtype), w.to(dtype)
    found = divergence((h, w), (h.clone(), w.clone()), [h], torch.zeros(5, dtype=torch.int64), tile)
    for value in (found.kl, found.reverse_kl, found.floor):
        assert not value.any()
    assert found.same_top.all()
    assert torch.equal(found.nll_ref, found.nll_cand)


def test_a_tiny_divergence_is_seen_and_none_is_negative() -> None:
    h, w, _, _ = sides(0, 200, 50, 1.0, torch.float64)
    found = divergence((h, w), (h * (1 + 1e-6), w), [], torch.zeros(200, dtype=torch.int64), 7)
    a, b = (torch.log_softmax(x @ w.T, 1) for x in (h, h * (1 + 1e-6)))
    expected = (a.exp() * (a - b) - a.exp() + b.exp()).sum(1)  # each term is at least 0: no cancellation
    assert 1e-13 < float(expected.max()) < 1e-9
    torch.testing.assert_close(found.kl, expected, atol=3e-15, rtol=1e-3)
    assert (found.kl >= 0).all()


def test_what_is_no_number_stays_none() -> None:
    h, w, g, v = sides(0, 2, 9, 1.0, torch.float32)
    g[1, 3] = torch.nan
    found = divergence((h, w), (g, v), [], torch.zeros(2, dtype=torch.int64), 4)
    assert found.kl.isnan().tolist() == [False, True]
