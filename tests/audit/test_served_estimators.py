"""Estimators and bounds against the divergence of whole distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truecast.audit.served_estimators import ROUNDING, Estimates, estimates, upper

VOCABULARY = 40


def distributions(seed: int, apart: float, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(0, sharpness, VOCABULARY)
    y = z + rng.normal(0, apart, VOCABULARY)
    return tuple(x - np.log(np.exp(x - x.max()).sum()) - x.max() for x in (z, y))


def known(p: np.ndarray, q: np.ndarray, top: int) -> np.ndarray:
    return np.intersect1d(np.argsort(-p)[:top], np.argsort(-q)[:top])


def each_token(p: np.ndarray, q: np.ndarray, inside: np.ndarray) -> Estimates:
    """The estimates where each token of the vocabulary follows in turn."""
    n = len(p)
    a, b = (np.tile(x[inside], (n, 1)) for x in (p, q))
    return estimates(a, b, p, q, np.isin(np.arange(n), inside))


CASES = given(
    seed=st.integers(0, 10_000),
    apart=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 5.0]),
    sharpness=st.sampled_from([0.1, 1.0, 4.0, 12.0]),
    top=st.integers(0, VOCABULARY),
)


@CASES
@settings(deadline=None, max_examples=80)
def test_bounds_enclose_and_averages_hit_the_divergence(seed: int, apart: float, sharpness: float, top: int) -> None:
    p, q = distributions(seed, apart, sharpness)
    exact = float((np.exp(p) * (p - q)).sum())
    inside = known(p, q, top)
    found = each_token(p, q, inside)
    weights = np.exp(p)
    assert weights @ found.log_ratio == pytest.approx(exact, abs=1e-9)
    assert weights @ found.estimate == pytest.approx(exact, abs=1e-9)
    assert (found.lower <= exact + 1e-12).all()
    rest = np.setdiff1d(np.arange(VOCABULARY), inside)
    if rest.size:
        tails = np.log(weights[rest].sum()), np.log(np.exp(q[rest]).sum())
        spread = float(np.abs(p[rest] - q[rest] - (tails[0] - tails[1])).max())
        # the lower bound gives away what rounding may be worth; the upper one is to be held against it without that
        assert (upper(found.lower, found.tail, spread) >= exact - 20 * ROUNDING).all()


def test_everything_known_is_the_divergence_itself() -> None:
    p, q = distributions(3, 0.5, 2.0)
    found = each_token(p, q, np.arange(VOCABULARY))
    exact = (np.exp(p) * (p - q)).sum()
    np.testing.assert_allclose(found.estimate, exact, rtol=1e-12)
    np.testing.assert_allclose(found.lower, exact, atol=20 * ROUNDING)


@pytest.mark.parametrize("sharpness", [1.0, 12.0, 30.0])
def test_float32_probabilities_never_lift_the_lower_bound(sharpness: float) -> None:
    for seed in range(200):
        p, q = distributions(seed, 1e-3, sharpness)
        exact = (np.exp(p) * (p - q)).sum()
        rounded = [x.astype(np.float32).astype(np.float64) for x in (p, q)]
        found = each_token(rounded[0], rounded[1], known(p, q, 30))
        assert (found.lower <= exact + 1e-7).all(), "1e-7: the rounding of the head's own sum"


def test_the_upper_bound_is_reached_by_the_worst_tail() -> None:
    spread, tail = 1.3, 0.2
    high = 1 / (1 + np.exp(spread))  # two tail tokens whose ratios are e^spread and e^-spread
    p = np.log([1 - tail, tail * (1 - high), tail * high])
    q = np.log([1 - tail, tail * high, tail * (1 - high)])
    exact = (np.exp(p) * (p - q)).sum()
    found = each_token(p, q, np.array([0]))
    assert upper(found.lower, found.tail, spread)[0] == pytest.approx(exact, abs=10 * ROUNDING)
    np.testing.assert_allclose(found.spread[1:], spread, rtol=1e-9)
    assert np.isnan(found.spread[0])
