"""Time until ready, against the two deployments whose start times were published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from truecast.errors import UsageError
from truecast.serve.forecast import constants as c
from truecast.serve.forecast.ready import graph_batches, load_seconds, ready, repack_seconds
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import read_topology

GH200, B200 = read_topology("gh200:8x4"), read_topology("b200:2x8")
SLOW, FAST = c.NODE_READS["GH200 8x4"], c.NODE_READS["B200 2x8"]


def test_gh200_loads_in_20_minutes_and_with_the_filter_in_5(k3: StoredModel) -> None:
    """These two gave the read rate and the start."""
    stock = load_seconds(k3, GH200, 32, 32, load_filter=False, node_read=SLOW)
    filtered = load_seconds(k3, GH200, 32, 32, load_filter=True, node_read=SLOW)
    assert c.START + stock == pytest.approx(1200, rel=0.02)
    assert c.START + filtered == pytest.approx(300, rel=0.02)


def test_gh200_is_ready_within_the_published_8_to_15_minutes(k3: StoredModel) -> None:
    """Not fitted: graphs are another deployment's."""
    for marlin in (False, True):
        found = ready(k3, GH200, 32, 32, load_filter=True, node_read=SLOW, marlin=marlin, drafted=2)
        assert 8 * 60 < found.seconds < 15 * 60


def test_each_deployment_from_the_others_read_rate_is_within_the_factor(k3: StoredModel) -> None:
    b200 = ready(k3, B200, 16, 16, load_filter=False, node_read=SLOW, graph_batch=112)
    assert b200.low < 16.5 * 60 < b200.high
    gh200 = load_seconds(k3, GH200, 32, 32, load_filter=False, node_read=FAST) + c.START
    assert gh200 < 1200 < gh200 * c.READY_FACTOR


def test_b200_with_its_own_read_rate(k3: StoredModel) -> None:
    found = ready(k3, B200, 16, 16, load_filter=False, node_read=FAST, graph_batch=112)
    assert found.seconds == pytest.approx(16.5 * 60, rel=0.02)
    assert len(graph_batches(112, speculation=False)) == 18


def test_a_full_page_cache_leaves_the_copy_of_each_rank(k3: StoredModel) -> None:
    cached = load_seconds(k3, GH200, 32, 32, load_filter=False, cached=True)
    assert cached == pytest.approx(k3.weights.total / c.RANK_READ)
    assert load_seconds(k3, GH200, 32, 32, load_filter=True, cached=True) < cached / 9


def test_ranks_that_share_experts_share_their_bytes(k3: StoredModel) -> None:
    """TP32 EP8: four ranks of a node hold parts of one eighth of the experts."""
    shared = load_seconds(k3, GH200, 32, 8, load_filter=True, node_read=1e9)
    others = k3.weights.total - k3.weights.experts
    assert shared == pytest.approx((others + k3.weights.experts / 8) / 1e9)


def test_without_ep_the_filter_changes_nothing(k3: StoredModel) -> None:
    times = [load_seconds(k3, GH200, 32, 1, load_filter=on, node_read=1e9) for on in (True, False)]
    assert times[0] == times[1]


def test_repack_outlasts_nccls_timeout_just_without_ep(k3: StoredModel) -> None:
    assert 600 < repack_seconds(k3, 1) < 3600
    assert repack_seconds(k3, 32) == pytest.approx(92 * 28 * c.REPACK)
    assert repack_seconds(replace(k3, format="w4afp8"), 1) == 0


def test_graph_batches_are_sglangs() -> None:
    assert graph_batches(64, speculation=False) == [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64]
    assert graph_batches(10, speculation=True) == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert graph_batches(9, speculation=False) == [1, 2, 4, 8, 9]


def test_an_unmeasured_read_rate_and_a_missing_filter_are_said(k3: StoredModel) -> None:
    found = ready(k3, GH200, 32, 32, load_filter=False)
    assert any("not measured" in reason for reason in found.reasons)
    assert any("filter" in reason for reason in found.reasons)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)


@pytest.mark.parametrize(("tp", "ep", "rate"), [(0, 1, None), (32, 5, None), (32, 32, 0.0), (32, 32, -1.0)])
def test_senseless_sizes_are_refused(k3: StoredModel, tp: int, ep: int, rate: float | None) -> None:
    with pytest.raises(UsageError):
        load_seconds(k3, GH200, tp, ep, load_filter=True, node_read=rate)
