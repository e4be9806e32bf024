"""Two candidates on the same tokens, and what is refused as another's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.audit_example import simulated
from truecast.audit.paired import paired, paired_folders
from truecast.audit.positions import Positions
from truecast.errors import InputError

A = simulated(20, mean_tokens=60)
B = replace(A, kl=A.kl * 0.9)
DOCUMENT = {
    "reference": {"location": "here", "fingerprint": "f0", "weights": "w0"},
    "candidate": {"location": "a"},
    "corpus": {"location": "docs.jsonl", "sha256": "c0", "limit": None},
    "device": "cpu",
    "dtype": "float32",
    "identical": False,
}


def folder(path: Path, positions: Positions, **changes: Any) -> Path:
    path.mkdir()
    positions.save(path / "positions")
    document = DOCUMENT | {"kl": {"mean": float(positions.kl.mean())}} | changes
    (path / "audit.json").write_text(json.dumps(document))
    return path


def test_the_difference_of_the_means() -> None:
    found = paired(A, B)
    assert (found["a"], found["b"]) == (pytest.approx(A.kl.mean()), pytest.approx(0.9 * A.kl.mean()))
    assert found["difference"]["mean"] == pytest.approx(0.1 * A.kl.mean())
    assert found["difference"]["warning"].startswith("20 documents")
    assert found["excludes_zero"] is True


def test_pairing_sees_what_two_intervals_would_not() -> None:
    found = paired(A, B)["difference"]
    assert found["se"] == pytest.approx(0.1 * paired(A, replace(A, kl=A.kl * 0))["difference"]["se"])


def test_the_ratio() -> None:
    noisy = replace(B, kl=B.kl * np.random.default_rng(0).lognormal(0, 0.1, len(B)))
    found = paired(A, noisy)
    assert found["ratio"] == pytest.approx(found["a"] / found["b"])
    assert found["ratio_interval"][0] < found["ratio"] < found["ratio_interval"][1]
    assert paired(A, B)["ratio_interval"] == pytest.approx([1 / 0.9, 1 / 0.9])
    nothing = paired(A, replace(A, kl=A.kl * 0))
    assert (nothing["ratio"], nothing["ratio_interval"]) == (None, None)
    one = simulated(1, mean_tokens=60)
    assert paired(one, one)["ratio_interval"] is None


def test_the_sides_swapped() -> None:
    one, other = paired(A, B)["difference"], paired(B, A)["difference"]
    assert one["interval"] == pytest.approx([-end for end in reversed(other["interval"])])


def test_no_difference_is_shown_where_there_is_none() -> None:
    rng = np.random.default_rng(0)
    found = paired(A, replace(A, kl=A.kl * rng.lognormal(-0.02, 0.2, len(A))))
    assert found["excludes_zero"] is False
    assert paired(A, A)["difference"]["interval"] == [0.0, 0.0]
    assert paired(A, A)["excludes_zero"] is False


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda p: replace(p, doc=p.doc[::-1].copy()), "doc.npy"),
        (lambda p: Positions(**{k: getattr(p, k)[:-1] for k in Positions.__dataclass_fields__}), "doc.npy"),
        (lambda p: replace(p, pos=p.pos + np.int32(1)), "pos.npy"),
        (lambda p: replace(p, nll_ref=np.where(p.doc == 7, p.nll_ref + 0.1, p.nll_ref)), "nll_ref.npy"),
    ],
)
def test_other_documents_or_tokens_are_refused(change: Any, where: str) -> None:
    with pytest.raises(InputError) as caught:
        paired(A, change(B))
    assert caught.value.where == where
    assert "same corpus" in caught.value.fix


def test_the_document_is_named() -> None:
    other = replace(B, nll_ref=np.where(B.doc == 7, B.nll_ref + 0.1, B.nll_ref))
    with pytest.raises(InputError, match=r"document 7 differs by 0\.1 nats"):
        paired(A, other)


def test_rounding_of_the_reference_is_no_other_reference() -> None:
    noise = 0.01 * np.random.default_rng(0).standard_normal(len(A))
    assert paired(A, replace(B, nll_ref=B.nll_ref + noise))["excludes_zero"] is True


def test_nothing_to_compare() -> None:
    empty = Positions(**{name: getattr(A, name)[:0] for name in Positions.__dataclass_fields__})
    with pytest.raises(InputError, match="no position"):
        paired(empty, empty)


def test_two_folders(tmp_path: Path) -> None:
    other = {"location": "elsewhere", "fingerprint": "f0", "weights": "w0"}  # a copy of the same reference
    one, two = folder(tmp_path / "a", A), folder(tmp_path / "b", B, candidate={"location": "b"}, reference=other)
    found = paired_folders(one, two)
    assert found["candidates"] == [{"location": "a"}, {"location": "b"}]
    assert {key: found[key] for key in found if key != "candidates"} == paired(A, B)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": {"fingerprint": "f1"}}, "reference: f0 against f1"),
        ({"reference": {"fingerprint": "f0", "weights": "w1"}}, "reference's weights: w0 against w1"),
        ({"kl": {"mean": 0.5}}, r"b/positions: are not those of audit\.json"),
        ({"kl": None}, r"b/positions: are not those of audit\.json"),
        ({"corpus": {"sha256": "c1", "limit": None}}, "corpus: c0 against c1"),
        ({"corpus": {"sha256": "c0", "limit": 5}}, "limit of documents: None against 5"),
        ({"dtype": "bfloat16"}, "dtype: float32 against bfloat16"),
        ({"device": "cuda"}, "device: cpu against cuda"),
        ({"identical": True}, "found identical"),
    ],
)
def test_audits_of_other_things_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        paired_folders(folder(tmp_path / "a", A), folder(tmp_path / "b", B, **changes))
    assert caught.value.fix


@pytest.mark.parametrize(("text", "message"), [(None, "no such file"), ("{", "not readable"), ("[]", "not an audit")])
def test_folders_of_no_audit(tmp_path: Path, text: str | None, message: str) -> None:
    one = folder(tmp_path / "a", A)
    path = one / "audit.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        paired_folders(one, one)
    assert caught.value.where == str(path)
