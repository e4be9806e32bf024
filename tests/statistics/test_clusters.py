"""Standard errors by document, against plain loops and the cases where they are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from truecast.statistics.clusters import by_document, cr1_error, design_effect, jackknife_error


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=6), st.randoms())
def test_errors_are_those_of_plain_loops(documents: list[list[float]], random: object) -> None:
    rows = [(g, x) for g, xs in enumerate(documents) for x in xs]
    random.shuffle(rows)  # type: ignore[attr-defined]
    clusters = by_document(np.array([x for _, x in rows]), np.array([10 * g for g, _ in rows]))
    groups, n = len(documents), len(rows)
    mean = math.fsum(x for _, x in rows) / n
    squares = math.fsum(math.fsum(x - mean for x in xs) ** 2 for xs in documents)
    assert clusters.mean == pytest.approx(mean, abs=1e-12)
    assert cr1_error(clusters) == pytest.approx(math.sqrt(groups / (groups - 1) * squares) / n, abs=1e-9)
    without = [math.fsum(x for g, x in rows if g != out) / sum(1 for g, _ in rows if g != out) for out in range(groups)]
    assert clusters.left_out == pytest.approx(without, abs=1e-9)
    middle = math.fsum(without) / groups
    spread = math.fsum((w - middle) ** 2 for w in without)
    assert jackknife_error(clusters.left_out) == pytest.approx(math.sqrt((groups - 1) / groups * spread), abs=1e-9)


def test_documents_of_one_token_have_no_design_effect() -> None:
    x = np.random.default_rng(0).lognormal(size=50)
    clusters = by_document(x, np.arange(50))
    assert cr1_error(clusters) == pytest.approx(x.std(ddof=1) / math.sqrt(50))
    assert design_effect(clusters) == pytest.approx(1.0)


def test_documents_whose_tokens_agree_count_once() -> None:
    x = np.random.default_rng(0).lognormal(size=40)
    once, often = by_document(x, np.arange(40)), by_document(np.repeat(x, 25), np.repeat(np.arange(40), 25))
    assert cr1_error(often) == pytest.approx(cr1_error(once))
    assert design_effect(often) == pytest.approx(25, rel=0.03)  # 25 (n - 1) / (n - 25), n = 1000


def test_no_spread_no_design_effect() -> None:
    assert design_effect(by_document(np.ones(6), np.array([0, 0, 1, 1, 2, 2]))) is None
