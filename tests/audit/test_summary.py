"""The figures of an audit against figures counted plainly."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.report.audit_example import simulated
from truecast.audit.distribution import tail
from truecast.audit.per_document import per_document
from truecast.audit.positions import Positions
from truecast.audit.summary import summary
from truecast.errors import InputError

POSITIONS = simulated(12, mean_tokens=150)
FLOOR = {seed: POSITIONS.kl * factor for seed, factor in ((0, 0.05), (1, 0.06), (2, 0.1))}
SUMMARY = summary(POSITIONS, FLOOR)


def some(**arrays: object) -> Positions:
    """Four positions of two documents, but for the arrays given."""
    plain = {
        "doc": np.array([0, 0, 1, 1], np.int32),
        "pos": np.array([0, 1, 0, 1], np.int32),
        "kl": np.array([0.1, 0.2, 0.3, 0.4]),
        "reverse_kl": np.array([0.1, 0.2, 0.3, 0.5]),
        "nll_ref": np.ones(4),
        "nll_cand": np.ones(4),
        "ref_top_prob": np.full(4, 0.5, np.float32),
        "ref_margin": np.ones(4, np.float32),
        "same_top": np.ones(4, bool),
    }
    return Positions(**(plain | arrays))


def test_it_is_json() -> None:
    assert json.loads(json.dumps(SUMMARY, allow_nan=False)) == SUMMARY


def test_every_token_counts_the_same() -> None:
    assert SUMMARY["kl"]["mean"] == pytest.approx(POSITIONS.kl.mean())
    assert SUMMARY["reverse_kl"]["mean"] == pytest.approx(POSITIONS.reverse_kl.mean())
    assert SUMMARY["kl"]["documents"] == 12
    assert SUMMARY["kl"]["tokens"] == len(POSITIONS)


def test_median_tail_and_worst_hundredth() -> None:
    kl = np.r_[np.full(198, 1.0), 51.0, 51.0]
    assert tail(kl) == {"median": 1.0, "p99": pytest.approx(np.quantile(kl, 0.99)), "worst_1_percent_share": 0.34}
    assert tail(np.array([3.0]))["worst_1_percent_share"] == 1.0
    assert tail(np.zeros(5))["worst_1_percent_share"] == 0.0


def test_floor_and_excess() -> None:
    means = [seed["mean"] for seed in SUMMARY["floor"]["seeds"]]
    assert means == pytest.approx([POSITIONS.kl.mean() * f for f in (0.05, 0.06, 0.1)])
    assert SUMMARY["floor"]["mean"] == pytest.approx(np.mean(means))
    assert SUMMARY["floor"]["sd"] == pytest.approx(np.std(means, ddof=1))
    assert SUMMARY["excess"]["mean"] == pytest.approx(SUMMARY["kl"]["mean"] - SUMMARY["floor"]["mean"])
    assert SUMMARY["excess"]["above_floor"] is True
    assert summary(POSITIONS, {0: POSITIONS.kl * 1.01})["excess"]["above_floor"] is False


def test_without_a_floor() -> None:
    found = summary(POSITIONS)
    assert (found["floor"], found["excess"], found["distribution"]["floor_tokens"]) == (None, None, None)
    assert summary(POSITIONS, {5: POSITIONS.kl})["floor"]["sd"] is None


def test_perplexities() -> None:
    found = SUMMARY["perplexity"]
    assert found["reference"] == pytest.approx(math.exp(POSITIONS.nll_ref.mean()))
    assert found["ratio"] == pytest.approx(found["candidate"] / found["reference"])
    assert found["ratio_interval"][0] < found["ratio"] < found["ratio_interval"][1]
    assert summary(some(nll_cand=np.full(4, 800.0)))["perplexity"]["candidate"] is None  # e^800 is no float


def test_first_choices_by_margin() -> None:
    margins = np.array([0.0, 0.1, 3.9, 50.0], np.float32)
    found = summary(some(ref_margin=margins, same_top=np.array([False, True, True, False])))["top1"]
    assert (found["agreement"], found["flips"]) == (0.5, 2)
    rows = [(r["from"], r["to"], r["tokens"], r["flips"], r["rate"]) for r in found["flips_by_margin"]]
    assert rows == [(0.0, 0.1, 1, 1, 1.0), (0.1, 0.25, 1, 0, 0.0), (2.0, 4.0, 1, 0, 0.0), (4.0, None, 1, 1, 1.0)]
    assert 0 <= found["interval"][0] <= 0.5 <= found["interval"][1]


def test_no_flip_seen_is_no_proof_of_none() -> None:
    found = summary(some())["top1"]
    assert (found["agreement"], found["flips"], found["interval"]) == (1.0, 0, None)


def test_buckets_of_confidence() -> None:
    rows = summary(some(ref_top_prob=np.array([0.1, 0.5, 0.95, 1.0], np.float32)))["by_confidence"]
    found = [(r["from"], r["to"], r["tokens"], r["documents"], r["mean"]) for r in rows]
    assert found == [(0.0, 0.25, 1, 1, 0.1), (0.5, 0.75, 1, 1, 0.2), (0.9, 0.99, 1, 1, 0.3), (0.99, 1.0, 1, 1, 0.4)]
    assert [r["interval"] for r in rows] == [None] * 4
    assert sum(r["kl_share"] for r in rows) == pytest.approx(1)


def test_buckets_of_depth() -> None:
    rows = summary(some(pos=np.array([0, 15, 16, 127], np.int32)))["by_position"]
    assert [(r["from"], r["to"], r["tokens"]) for r in rows] == [(0, 16, 2), (16, 32, 1), (64, 128, 1)]


@pytest.mark.parametrize("key", ["by_confidence", "by_position"])
def test_buckets_hold_every_token_once(key: str) -> None:
    assert sum(r["tokens"] for r in SUMMARY[key]) == len(POSITIONS)
    total = sum(r["tokens"] * r["mean"] for r in SUMMARY[key])
    assert total == pytest.approx(POSITIONS.kl.sum())


def test_the_distribution_holds_every_token_once() -> None:
    kl = np.array([0.0, -1e-17, 1e-15, 0.15, 1.0, 1.1, 1e5])  # 0 and below apart, far ones in the outer bins
    doc, pos = np.zeros(7, np.int32), np.arange(7, dtype=np.int32)
    flat = {name: np.zeros(7, dtype) for name, dtype in (("ref_top_prob", np.float32), ("ref_margin", np.float32))}
    other = {"doc": doc, "pos": pos, "reverse_kl": kl, "nll_ref": kl, "nll_cand": kl, "same_top": kl < 9}
    found = summary(Positions(kl=kl, **flat, **other))["distribution"]
    edges = found["log10_edges"]
    assert (edges[0], edges[-1], found["zero_tokens"], sum(found["tokens"])) == (-10.0, 2.0, 2, 5)
    assert found["tokens"][edges.index(0.0)] == 2
    assert found["tokens"][edges.index(-1.0)] == 1
    assert sum(found["kl_share"]) == pytest.approx(1)


def test_documents_one_by_one() -> None:
    rows = per_document(POSITIONS.doc, POSITIONS.pos, POSITIONS.kl, [f"d{i}" for i in range(12)])
    assert [r["id"] for r in rows] == [f"d{i}" for i in range(12)]
    for row in rows:
        kl = POSITIONS.kl[POSITIONS.doc == row["document"]]
        assert (row["tokens"], row["mean"]) == (len(kl), pytest.approx(kl.mean()))
        assert (row["interval"] is None) == (len(kl) <= 7 * 32)
        if row["interval"]:
            assert row["interval"][0] < row["mean"] < row["interval"][1]


def test_nothing_scored() -> None:
    empty = Positions(**{name: getattr(POSITIONS, name)[:0] for name in Positions.__dataclass_fields__})
    with pytest.raises(InputError, match="no position was scored"):
        summary(empty)


def test_a_floor_of_other_positions() -> None:
    with pytest.raises(InputError, match="positions") as caught:
        summary(POSITIONS, {7: POSITIONS.kl[1:]})
    assert caught.value.where == "floor of seed 7"
