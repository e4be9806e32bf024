from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from truecast.errors import InputError
from truecast.models.sampling import LEAST, Sampler, scored

LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=30).map(torch.tensor)


@given(LOGITS, st.integers(0, 30))
def test_logprobs_are_torchs(logits: torch.Tensor, top: int) -> None:
    wanted = logits.double().log_softmax(0)
    got = scored(logits, 1, top)
    assert got.logprob == pytest.approx(float(wanted[1]), abs=1e-9)
    assert [p for _, p in got.top] == pytest.approx(wanted.sort(descending=True).values[:top].tolist(), abs=1e-9)
    assert all(p == pytest.approx(float(wanted[t]), abs=1e-9) for t, p in got.top)


@given(LOGITS)
def test_temperature_zero_takes_the_largest(logits: torch.Tensor) -> None:
    assert logits[Sampler(0).pick(logits)] == logits.max()


@given(LOGITS, st.integers(), st.floats(0.01, 5), st.floats(0.01, 1))
def test_a_seed_draws_the_same_again(logits: torch.Tensor, seed: int, temperature: float, top_p: float) -> None:
    one, two = Sampler(temperature, top_p, seed), Sampler(temperature, top_p, seed)
    assert [one.pick(logits) for _ in range(5)] == [two.pick(logits) for _ in range(5)]


def test_sequences_of_one_seed_differ() -> None:
    logits = torch.zeros(1000)
    assert len({Sampler(seed=1, stream=i).pick(logits) for i in range(5)}) == 5
    assert len({Sampler().pick(logits) for _ in range(5)}) > 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_shares_are_those_of_the_softmax(temperature: float) -> None:
    logits, draws = torch.tensor([0.0, 1.0, -1.0, 2.0]), 4000
    sampler = Sampler(temperature, seed=3)
    counts = Counter(sampler.pick(logits) for _ in range(draws))
    for token, share in enumerate((logits.double() / temperature).softmax(0).tolist()):
        assert abs(counts[token] - draws * share) < 5 * np.sqrt(draws * share * (1 - share))


@given(LOGITS, st.floats(0.01, 0.99), st.integers(0, 1000))
def test_only_the_nucleus_is_drawn(logits: torch.Tensor, top_p: float, seed: int) -> None:
    shares = logits.double().softmax(0)
    token = Sampler(1.0, top_p, seed).pick(logits)
    assert float(shares[shares > shares[token]].sum()) <= top_p + 1e-9


def test_an_impossible_token_is_never_drawn() -> None:
    logits = torch.tensor([0.0, -torch.inf, -torch.inf])
    assert {Sampler(1.0, 1.0, seed).pick(logits) for seed in range(100)} == {0}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_are_an_error(bad: float) -> None:
    logits = torch.tensor([0.0, bad, 1.0])
    for use in (Sampler(0).pick, Sampler().pick, lambda x: scored(x, 0, 1)):
        with pytest.raises(InputError, match="no numbers"):
            use(logits)


def test_a_logprob_is_a_number_even_of_an_impossible_token() -> None:
    assert scored(torch.tensor([0.0, -torch.inf]), 1, 2).logprob == LEAST


@pytest.mark.parametrize("temperature", [1e-3, 1e-308, 1e-320])
def test_a_temperature_near_zero_takes_the_largest(temperature: float) -> None:
    logits = torch.tensor([3.0, -50.0, 50.0, 40.0])
    assert Sampler(temperature, seed=1).pick(logits) == 2
