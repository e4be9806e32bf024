"""``truecast audit --server`` as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.served_servers import VOCAB, Fake, sglang, table

Cli = Callable[..., Any]
DOCUMENTS, LENGTH = 40, 30


def drawn(logprobs: np.ndarray, count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Documents drawn from a table; the first two tokens are the prompt."""
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        tokens = rng.integers(0, VOCAB, 2).tolist()
        while len(tokens) < LENGTH:
            tokens.append(int(rng.choice(VOCAB, p=np.exp(logprobs[tokens[-1]]))))
        found.append({"id": f"d{number}", "tokens": tokens, "scored_from": 1})
    return found


def write(path: Path, documents: list[dict[str, Any]], source: Any) -> Path:
    header = {"schema": "truecast.corpus/1", "tokenizer_sha256": "0" * 64, "vocab": VOCAB, "source": source}
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *documents)))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Drawn from the reference's server."""
    return write(tmp_path / "docs.jsonl", drawn(table(0), DOCUMENTS), {"server": "m", "temperature": 1.0})


@pytest.fixture
def native() -> Iterator[Fake]:
    with sglang(table(0)) as server:
        yield server


@pytest.fixture
def cast() -> Iterator[Fake]:
    with sglang(table(1, 0.3)) as server:
        yield server


def audit(cli: Cli, cast: Fake, native: Fake, corpus: Path, *more: object) -> Any:
    return cli("audit", "--server", cast.url, "--reference", native.url, "--corpus", corpus, "--quiet", *more)


def exact(corpus: Path, ref: np.ndarray, cand: np.ndarray) -> float:
    by_token = (np.exp(ref) * (ref - cand)).sum(1)
    documents = [json.loads(line) for line in corpus.read_text().splitlines()[1:]]
    return float(np.mean([by_token[t] for d in documents for t in d["tokens"][1:-1]]))


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.23"])
def test_estimators_hold_the_exact_divergence(cli: Cli, corpus: Path, version: str, native: Fake, cast: Fake) -> None:
    cast.info["version"] = native.info["version"] = version
    document = audit(cli, cast, native, corpus, "--json", "--top", 12).json
    truth = exact(corpus, table(0), table(1, 0.3))
    measures = document["measures"]
    assert document["schema"] == "truecast.audit/1"
    assert document["candidate"]["version"] == version
    assert document["estimator"]["name"] == "estimate"
    assert document["estimator"]["unit"] == "document"
    assert document["kl"] == measures["estimate"]["candidate"]
    for name in ("estimate", "log_ratio"):
        low, high = measures[name]["candidate"]["interval"]
        assert low <= truth <= high
    assert measures["estimate"]["candidate"]["se"] < 0.7 * measures["log_ratio"]["candidate"]["se"]
    assert 0.5 * truth < measures["lower"]["candidate"]["mean"] <= truth <= measures["upper"]["candidate"]["mean"]
    assert document["floor"]["mean"] == pytest.approx(0, abs=1e-6)
    assert document["excess"]["above_floor"] is True
    assert document["covered"]["as_drawn"] is True
    assert document["kl"]["documents"] == DOCUMENTS


def test_a_noisy_native_server_is_told_from_the_cast(cli: Cli, corpus: Path, cast: Fake) -> None:
    with sglang(table(0)) as native:
        half = DOCUMENTS

        def noisy(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            from tests.audit.served_servers import sglang_answer

            return answer if len(native.asked) <= half else sglang_answer(table(2, 0.05), body)

        native.change = noisy
        document = audit(cli, cast, native, corpus, "--json").json
    truth = exact(corpus, table(0), table(2, 0.05))
    low, high = document["floor"]["interval"]
    assert low <= truth <= high
    low, high = document["excess"]["interval"]
    assert low <= exact(corpus, table(0), table(1, 0.3)) - truth <= high


def test_text_of_other_origin_gives_bounds_only(cli: Cli, tmp_path: Path, native: Fake, cast: Fake) -> None:
    other = write(tmp_path / "other.jsonl", drawn(table(5, 3.0), 30), None)
    document = audit(cli, cast, native, other, "--json").json
    assert document["sampled"]["from_reference"] is None
    assert document["estimator"]["name"] == "lower"
    assert document["covered"]["as_drawn"] is False
    truth = exact(other, table(0), table(1, 0.3))
    assert document["kl"]["mean"] <= truth <= document["measures"]["upper"]["candidate"]["mean"]
    falsely = write(tmp_path / "falsely.jsonl", drawn(table(5, 3.0), 30), {"server": "m", "temperature": 1})
    assert "does not look drawn from the reference" in audit(cli, cast, native, falsely).out


def test_terminal_and_page_tell_estimator_unit_and_floor(
    cli: Cli, corpus: Path, tmp_path: Path, native: Fake, cast: Fake
) -> None:
    outcome = audit(cli, cast, native, corpus, "--out", tmp_path / "out")
    assert outcome.code == 0
    page = (tmp_path / "out" / "audit.html").read_text()
    for words in ("document: 40 with 1,120 positions", "asked a second time", "the tail by the token that follows"):
        assert words in outcome.out
        assert words in page
    kept = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert kept["candidate"]["arguments"]["--tp-size"] == "1"
    assert "hidden" not in json.dumps(kept), "the server's key goes nowhere"
    saved = np.load(tmp_path / "out" / "positions" / "estimate.npy")
    assert saved.mean() == pytest.approx(kept["kl"]["mean"])
    asked = len(cast.asked)
    assert audit(cli, cast, native, corpus, "--out", tmp_path / "out", "--json").json["kl"] == kept["kl"]
    assert len(cast.asked) == asked, "what is finished is not asked again"


FAULTS: list[tuple[str, Any]] = [
    ("a log-probability of null", lambda meta: meta["input_token_logprobs"][9].__setitem__(0, None)),
    ("a log-probability of nan", lambda meta: meta["input_top_logprobs"][9][0].__setitem__(0, float("nan"))),
    ("probability of 0", lambda meta: meta["input_token_logprobs"][9].__setitem__(0, -9999.0)),
    ("without input_top_logprobs", lambda meta: meta.pop("input_top_logprobs")),
    ("without input_token_logprobs", lambda meta: meta.update(input_token_logprobs=[])),
    ("other tokens than were sent", lambda meta: meta["input_token_logprobs"].pop()),
    ("19 of the 20 most probable", lambda meta: meta["input_top_logprobs"][9].pop()),
    ("no pair of log-probability", lambda meta: meta["input_top_logprobs"][9].__setitem__(0, "x")),
    ("breaks off", None),
]


@pytest.mark.parametrize(("words", "fault"), FAULTS, ids=[w for w, _ in FAULTS])
def test_a_bad_answer_names_the_document_and_keeps_the_others(
    cli: Cli, corpus: Path, tmp_path: Path, native: Fake, cast: Fake, words: str, fault: Any
) -> None:
    bad = drawn(table(0), DOCUMENTS)[12]["tokens"]

    def change(body: dict[str, Any], answer: dict[str, Any]) -> Any:
        if body["input_ids"] == bad:
            if fault is None:
                return None
            fault(answer["meta_info"])
        return answer

    cast.change = change
    outcome = audit(cli, cast, native, corpus, "--out", tmp_path / "out", "--concurrency", 1)
    assert outcome.code == 2
    assert words in outcome.err
    assert "12 of 40 documents of the candidate are done" in outcome.err
    assert "Traceback" not in outcome.err
    if fault is not None:
        assert "'d12'" in outcome.err
    cast.change = lambda body, answer: answer
    cast.asked.clear()
    assert audit(cli, cast, native, corpus, "--out", tmp_path / "out").code == 0
    assert len(cast.asked) == DOCUMENTS - 12


def test_a_server_that_becomes_another(cli: Cli, corpus: Path, tmp_path: Path, native: Fake, cast: Fake) -> None:
    def change(_: Any, answer: Any) -> Any:
        cast.info["quantization"] = "other"
        return answer

    cast.change = change
    outcome = audit(cli, cast, native, corpus, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "is another server" in outcome.err
    outcome = audit(cli, cast, native, corpus, "--out", tmp_path / "out")
    assert outcome.code == 3
    assert "a different candidate" in outcome.err


def test_restarted_on_another_port_it_goes_on(cli: Cli, corpus: Path, tmp_path: Path, native: Fake) -> None:
    with sglang(table(1, 0.3)) as first:
        first.change = lambda _, answer: answer if len(first.asked) < 9 else None
        assert audit(cli, first, native, corpus, "--out", tmp_path / "out", "--concurrency", 1).code == 2
        outcome = None
    with sglang(table(1, 0.3)) as second:
        second.info["port"] = 2
        outcome = audit(cli, second, native, corpus, "--out", tmp_path / "out")
        assert outcome.code == 0
        assert len(second.asked) == DOCUMENTS - 8


def test_refused_before_anything_is_asked(cli: Cli, corpus: Path, native: Fake, cast: Fake) -> None:
    cast.context = LENGTH
    outcome = audit(cli, cast, native, corpus)
    assert outcome.code == 2
    assert "document 'd0' has 30 tokens" in outcome.err
    assert not cast.asked
    for words in (["--activations", "none"], ["--floor-seeds", 0], ["--force"], ["--native", native.url]):
        assert audit(cli, cast, native, corpus, *words).code == 2
    assert cli("audit", "a", "b", "--corpus", corpus, "--top", 3).err.endswith("--top goes with --server URL\n")
    assert "REF and CAND are needed" in cli("audit", "a", "--corpus", corpus).err
    assert "--server needs --reference" in cli("audit", "--server", cast.url, "--corpus", corpus).err
    assert cli("audit", "--server", "http://127.0.0.1:9", "--reference", native.url, "--corpus", corpus).code == 2
