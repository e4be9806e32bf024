"""Two audits side by side: paired where the positions are there, and refused where they do not belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.audit.test_paired import A, B, folder
from truecast.audit.paired import paired
from truecast.audit.side_by_side import side_by_side
from truecast.errors import InputError


def compared(one: Path, other: Path) -> dict[str, Any]:
    files = one / "audit.json", other / "audit.json"
    return side_by_side(*(json.loads(file.read_text()) for file in files), files)


def test_with_positions_it_is_the_paired_difference(tmp_path: Path) -> None:
    found = compared(folder(tmp_path / "a", A), folder(tmp_path / "b", B))
    judge = paired(B, A)["difference"]
    assert found["paired"]["difference"] == judge and judge["mean"] < 0
    assert 2.8 < found["detectable"] / judge["se"] < 3.1
    assert (found["a"]["kl"]["mean"], found["warnings"]) == (pytest.approx(A.kl.mean()), [])


def test_served_audits_keep_bounds_and_stand_side_by_side(tmp_path: Path) -> None:
    folders = folder(tmp_path / "a", A), folder(tmp_path / "b", B)
    for one in folders:
        (one / "positions" / "kl.npy").rename(one / "positions" / "lower.npy")
    found = compared(*folders)
    assert found["paired"] is None and "overlap of two intervals is no test" in found["warnings"][0]


def test_a_served_audit_is_not_held_against_an_exact_one(tmp_path: Path) -> None:
    served = folder(tmp_path / "a", A, estimator={"name": "estimate", "top": 20})
    with pytest.raises(InputError, match=r"estimator: .'name': 'estimate'"):
        compared(served, folder(tmp_path / "b", B))


def test_without_positions_there_is_no_test(tmp_path: Path) -> None:
    floor, excess = {"mean": 0.001, "sd": None}, {"mean": 0.01, "interval": [0.009, 0.011]}
    a = folder(tmp_path / "a", A, floor=floor, excess=excess)
    (a / "positions").rename(tmp_path / "elsewhere")
    found = compared(a, folder(tmp_path / "b", B))
    assert found["paired"] is None and found["detectable"] is None
    assert "overlap of two intervals is no test" in found["warnings"][0]
    assert found["a"]["floor"] == {"mean": 0.001, "interval": None} and found["a"]["excess"] == excess
    assert found["b"]["floor"] is None


def test_other_corpus(tmp_path: Path) -> None:
    other = {"location": "docs.jsonl", "sha256": "c1", "limit": None}
    with pytest.raises(InputError, match="corpus: 'c0' against 'c1'"):
        compared(folder(tmp_path / "a", A), folder(tmp_path / "b", B, corpus=other))


@pytest.mark.parametrize(
    "kl", [None, {"mean": "0.1"}, {"mean": True}, {"mean": 0.1, "interval": [0, None]}, {"mean": 10**400}]
)
def test_what_is_no_figure(tmp_path: Path, kl: Any) -> None:
    with pytest.raises(InputError, match="kl holds no mean with an interval"):
        compared(folder(tmp_path / "a", A), folder(tmp_path / "b", B, kl=kl))
