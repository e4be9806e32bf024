"""The two forms of KDA against each other: values, states, gradients, hard cases."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from truecast.models.kimi_k3.kda_chunked import chunked
from truecast.models.kimi_k3.kda_recurrent import recurrent


def inputs(tokens: int, bound: float | None, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v, a = (torch.randn(2, tokens, 3, 8, generator=g, dtype=torch.float64) for _ in range(4))
    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    a = bound * torch.sigmoid(4 * a) if bound else -20 * a.abs()
    beta = torch.rand(2, tokens, 3, generator=g, dtype=torch.float64)
    return [x.to(dtype) for x in (q, k, v, a, beta)]


def state(seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 70),
    bound=st.sampled_from([-5.0, -1.0, -20.0, None]),
    start=st.booleans(),
    single=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_chunked_is_recurrent(tokens: int, bound: float | None, start: bool, single: bool, seed: int) -> None:
    dtype, tolerance = (torch.float32, 1e-5) if single else (torch.float64, 1e-10)
    some, first = inputs(tokens, bound, seed, dtype), state(seed, dtype) if start else None
    wanted, ours = recurrent(*some, first), chunked(*some, first, bound)
    for a, b in zip(ours, wanted, strict=True):
        assert float((a - b).abs().max()) <= tolerance * (1 + float(b.abs().max()))


def test_pieces_hand_their_state_on() -> None:
    some = inputs(45, -5.0, 1)
    whole, last = chunked(*some, None, -5.0)
    first, middle = chunked(*(x[:, :21] for x in some), None, -5.0)
    second, end = recurrent(*(x[:, 21:] for x in some), middle)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("decay", [-1e-4, -4.9999])
def test_repeated_keys_in_float32(decay: float) -> None:
    """One key over and over, hardly forgotten: the series for the inverse of I + A would cancel thousands here."""
    k = torch.full((1, 64, 1, 16), 0.25)
    v = torch.randn(1, 64, 1, 16, generator=torch.Generator().manual_seed(0))
    a, beta = torch.full((1, 64, 1, 16), decay), torch.full((1, 64, 1), 0.999)
    wanted, _ = recurrent(*(x.double() for x in (k, k, v, a, beta)), None)
    ours, _ = chunked(k, k, v, a, beta, None, -5.0)
    assert float((ours - wanted).abs().max()) < 1e-5


@pytest.mark.parametrize("bound", [-5.0, None])
def test_gradients_are_those_of_the_recurrent_form(bound: float | None) -> None:
    grads = []
    for chunks in (False, True):
        some = [x.requires_grad_() for x in (*inputs(37, bound, 3), state(4, torch.float64))]
        out, last = chunked(*some, bound) if chunks else recurrent(*some)
        (out.sin().sum() + last.cos().sum()).backward()
        grads.append([x.grad for x in some])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
