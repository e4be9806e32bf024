"""``truecast audit --server`` with truecast's own server and the reference's checkpoint, against the exact audit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.shaped.kimi_k3 import make
from tests.models.k3_vocabulary import VOCABULARY, write_tokenizer
from tests.models.tiny_k3 import SHAPE
from tests.serve.serving import running
from truecast.audit import served
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.models.generate import Resident
from truecast.models.open import open_model

Cli = Callable[..., Any]
DOCUMENTS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``k3``, cast to ``w4``; ``prompts.jsonl``."""
    folder = tmp_path_factory.mktemp("served")
    source = folder / "k3"
    make(source, shape=replace(SHAPE, latent=128, expert_width=128))
    write_tokenizer(source)
    convert(source, folder / "w4", Target("w4afp8"), jobs=1)
    rng = np.random.default_rng(0)
    prompts = [{"id": f"p{i}", "tokens": rng.integers(0, 250, 3).tolist()} for i in range(DOCUMENTS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))
    return folder


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running(Resident(open_model(str(folder / name))).session)).url
            for name in ("k3", "w4")
        }


@pytest.fixture
def corpus(folder: Path, cli: Cli) -> Path:
    path = folder / "docs.jsonl"
    if not path.exists():
        made = cli("corpus", folder / "k3", "--prompts", folder / "prompts.jsonl", "--out", path, "--max-tokens", 20,
                   "--device", "cpu", "--quiet")  # fmt: skip
        assert made.code == 0, made.err
    return path


def audit(cli: Cli, folder: Path, servers: dict[str, str], corpus: Path, *more: object) -> Any:
    return cli("audit", "--server", servers["w4"], "--reference", folder / "k3", "--corpus", corpus,
               "--device", "cpu", "--quiet", *more)  # fmt: skip


def test_it_agrees_with_the_exact_audit(folder: Path, servers: dict[str, str], corpus: Path, cli: Cli) -> None:
    exact = cli("audit", folder / "k3", folder / "w4", "--corpus", corpus, "--device", "cpu", "--floor-seeds", 0,
                "--json", "--quiet").json  # fmt: skip
    outcome = audit(cli, folder, servers, corpus, "--native", servers["k3"], "--json", "--top", 100)
    assert outcome.code == 0, outcome.err
    found = outcome.json
    truth, measures = exact["kl"]["mean"], found["measures"]
    assert truth > 1e-6
    assert found["sampled"]["from_reference"] is True
    assert found["tokenizer"] == "a text is cut into the same tokens by all"
    for name in ("estimate", "log_ratio"):
        low, high = measures[name]["candidate"]["interval"]
        assert low <= truth <= high
    assert measures["lower"]["candidate"]["mean"] <= truth <= measures["upper"]["candidate"]["mean"]
    assert found["perplexity"]["ratio"] == pytest.approx(exact["perplexity"]["ratio"], rel=1e-4)
    assert found["top1"]["agreement"] == pytest.approx(exact["top1"]["agreement"], abs=0.02)
    assert found["floor"]["mean"] == pytest.approx(0, abs=1e-5), "the same model, the same arithmetic"
    whole = audit(cli, folder, servers, corpus, "--json", "--top", VOCABULARY).json
    assert whole["floor"] is None
    assert whole["measures"]["lower"]["candidate"]["mean"] == pytest.approx(truth, abs=3e-5)


def test_stopped_in_the_reference_it_asks_nothing_again(
    folder: Path, servers: dict[str, str], corpus: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(served, "look_up", stopped)
        assert audit(cli, folder, servers, corpus, "--out", tmp_path / "out").code == 130
    kept = sorted((tmp_path / "out" / ".audit" / "answers").iterdir())
    assert len(kept) == DOCUMENTS
    kept[3].write_bytes(b"cut")
    with monkeypatch.context() as patch:
        asked: list[str] = []
        ask = served.collect.__globals__["score_document"]
        patch.setitem(
            served.collect.__globals__, "score_document", lambda *a: (asked.append(a[1].id), ask(*a))[1]
        )  # fmt: skip
        assert audit(cli, folder, servers, corpus, "--out", tmp_path / "out").code == 0
    assert asked == ["p3"]
    assert not (tmp_path / "out" / ".audit" / "answers").exists()
    assert audit(cli, folder, servers, corpus, "--out", tmp_path / "out", "--top", 5).code == 3


def test_another_tokenizer_or_a_corpus_of_one(
    folder: Path, servers: dict[str, str], corpus: Path, cli: Cli, tmp_path: Path
) -> None:
    lines = corpus.read_text().splitlines()
    header = json.loads(lines[0])
    (tmp_path / "a.jsonl").write_text("\n".join([json.dumps({**header, "tokenizer_sha256": "0" * 64}), *lines[1:]]))
    outcome = audit(cli, folder, servers, tmp_path / "a.jsonl")
    assert outcome.code == 2
    assert "was made with another tokenizer" in outcome.err
    other = {**header, "source": {**header["source"], "temperature": 0.5}}
    (tmp_path / "b.jsonl").write_text("\n".join([json.dumps(other), *lines[1:]]))
    found = audit(cli, folder, servers, tmp_path / "b.jsonl", "--json").json
    assert found["estimator"]["name"] == "lower"
    assert "drawn at temperature 0.5" in found["sampled"]["how"]
    assert open_checkpoint(folder / "k3").fingerprint() == found["reference"]["fingerprint"]
