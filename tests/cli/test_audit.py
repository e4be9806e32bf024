"""``truecast audit`` as a user sees it, on a small Kimi-K3 and what it is cast to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import k3_checkpoint
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.models import open_model
from truecast.models.generate import logits
from truecast.models.tokenizer_hash import tokenizer_files, tokenizer_sha256

Cli = Callable[..., Any]
DOCUMENTS = [
    {"id": f"d{i}", "tokens": np.random.default_rng(i).integers(0, 320, 12 + 5 * i).tolist()} for i in range(4)
]


def write_corpus(path: Path, checkpoint: Path, *documents: Any) -> Path:
    files = tokenizer_files(open_checkpoint(checkpoint))
    header = {"schema": "truecast.corpus/1", "tokenizer_sha256": tokenizer_sha256(files), "vocab": 320}
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *(documents or DOCUMENTS))))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``k3``, cast to ``nvfp4`` and to ``w4afp8``, and ``docs.jsonl``."""
    folder = tmp_path_factory.mktemp("audit")
    source = k3_checkpoint.make(folder / "k3")
    for target in ("nvfp4", "w4afp8"):
        convert(source, folder / target, Target(target), jobs=1)
    write_corpus(folder / "docs.jsonl", source)
    return folder


def audit(cli: Cli, folder: Path, cand: str, *more: object) -> Any:
    return cli("audit", folder / "k3", folder / cand, "--corpus", folder / "docs.jsonl", "--device", "cpu", *more)


def test_an_exact_cast_takes_the_short_way(folder: Path, cli: Cli, tmp_path: Path) -> None:
    outcome = audit(cli, folder, "nvfp4", "--out", tmp_path / "out")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("The decoded weights are identical.")
    assert "identical" in (tmp_path / "out" / "audit.html").read_text()


def test_an_exact_cast_computed_on_both_sides_costs_exactly_nothing(folder: Path, cli: Cli) -> None:
    assert "error grows" not in audit(cli, folder, "nvfp4", "--force", "--floor-seeds", 0).out, "in no layer it does"
    document = audit(cli, folder, "nvfp4", "--force", "--json", "--quiet").json
    assert document["schema"] == "truecast.audit/1"
    assert (document["identical"], document["kl"]["mean"], document["reverse_kl"]["mean"]) == (False, 0, 0)
    assert document["top1"]["agreement"] == 1
    assert document["floor"]["mean"] > 0
    assert document["read"]["bytes"] <= 1.05 * document["read"]["checkpoint_bytes"]


def test_a_lossy_cast_costs_what_the_whole_models_say(folder: Path, cli: Cli, tmp_path: Path) -> None:
    outcome = audit(cli, folder, "w4afp8", "--out", tmp_path / "out", "--floor-seeds", 1)
    assert outcome.code == 0
    assert "KL, nats per token" in outcome.out
    document = json.loads((tmp_path / "out" / "audit.json").read_text())
    expected = []
    for tokens in (torch.tensor(d["tokens"]) for d in DOCUMENTS):
        p, q = (
            torch.log_softmax(logits(open_model(folder / name, dtype=torch.float64), tokens), 1)[:-1]
            for name in ("k3", "w4afp8")
        )
        expected.append((p.exp() * (p - q)).sum(1))
    assert document["kl"]["mean"] == pytest.approx(float(torch.cat(expected).mean()), rel=1e-3)
    assert document["kl"]["mean"] > 1e-4
    assert (tmp_path / "out" / "audit.html").read_text().startswith("<!doctype html>")
    again = audit(cli, folder, "w4afp8", "--out", tmp_path / "out", "--floor-seeds", 1, "--json").json
    assert again == document


def test_activations(folder: Path, cli: Cli) -> None:
    plain = audit(cli, folder, "w4afp8", "--floor-seeds", 0, "--json").json
    rounded = audit(
        cli, folder, "w4afp8", "--floor-seeds", 0, "--activations", "fp8-token", "--kv", "fp8", "--json"
    ).json
    assert rounded["kl"]["mean"] != plain["kl"]["mean"]
    assert (rounded["activations"], rounded["kv"]) == ("fp8-token", "fp8")
    refused = audit(cli, folder, "nvfp4", "--activations", "fp8-tensor")
    assert refused.code == 2
    assert "stores no input_scale" in refused.err
    static = audit(cli, folder, "w4afp8", "--floor-seeds", 0, "--activations", "fp8-tensor", "--json").json
    assert static["kl"]["mean"] not in (plain["kl"]["mean"], rounded["kl"]["mean"])


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        ([{"id": "a", "tokens": [1, 320]}], "document 'a' in {}, line 2: token id 320 at position 1 is outside"),
        ([{"id": "a", "tokens": []}], "document 'a' in {}, line 2: is empty"),
        ([5], "{}, line 2: is no JSON object"),
    ],
)
def test_bad_documents(folder: Path, cli: Cli, tmp_path: Path, documents: list[Any], problem: str) -> None:
    corpus = write_corpus(tmp_path / "bad.jsonl", folder / "k3", *documents)
    outcome = cli("audit", folder / "k3", folder / "nvfp4", "--corpus", corpus)
    assert outcome.code == 2
    assert problem.format(corpus) in outcome.err
    assert "Traceback" not in outcome.err


def test_sides_and_corpus_that_do_not_belong_together(folder: Path, cli: Cli, tmp_path: Path) -> None:
    other = shutil.copytree(folder / "nvfp4", tmp_path / "other")
    name = next(iter(tokenizer_files(open_checkpoint(other))))
    (other / name).write_bytes(b"another")
    outcome = cli("audit", folder / "k3", other, "--corpus", folder / "docs.jsonl")
    assert outcome.code == 2
    assert f"{name} differs" in outcome.err
    corpus = write_corpus(tmp_path / "docs.jsonl", other)
    outcome = cli("audit", folder / "k3", folder / "nvfp4", "--corpus", corpus)
    assert outcome.code == 2
    assert "made with another tokenizer" in outcome.err
    k3_checkpoint.edit_config(other, attn_res_block_size=3)
    (other / name).write_bytes((folder / "k3" / name).read_bytes())
    outcome = cli("audit", folder / "k3", other, "--corpus", folder / "docs.jsonl")
    assert outcome.code == 2
    assert "text_config.attn_res_block_size is 3, the reference's is 2" in outcome.err


def test_memory_and_folder_are_refused_with_3(folder: Path, cli: Cli, tmp_path: Path) -> None:
    outcome = audit(cli, folder, "w4afp8", "--memory", "1MB")
    assert outcome.code == 3
    assert "the smallest that works is" in outcome.err
    assert audit(cli, folder, "w4afp8", "--out", tmp_path / "out", "--floor-seeds", 0).code == 0
    assert audit(cli, folder, "nvfp4", "--out", tmp_path / "out", "--floor-seeds", 0).code == 3
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    assert audit(cli, folder, "w4afp8", "--out", tmp_path / "mine").code == 2


def test_two_candidates(folder: Path, cli: Cli, tmp_path: Path) -> None:
    convert(folder / "k3", tmp_path / "amax", Target("w4afp8", method="amax"), jobs=1)
    one, two = tmp_path / "one", tmp_path / "two"
    assert audit(cli, folder, "w4afp8", "--out", one, "--floor-seeds", 0).code == 0
    more = ("--out", two, "--floor-seeds", 0, "--against", one)
    document = audit(cli, folder, tmp_path / "amax", *more, "--json").json
    means = [json.loads((path / "audit.json").read_text())["kl"]["mean"] for path in (two, one)]
    assert document["paired"]["difference"]["mean"] == pytest.approx(means[0] - means[1])
    assert json.loads((two / "audit.json").read_text()) == document
    assert "Against another candidate" in (two / "audit.html").read_text()
    again = audit(cli, folder, tmp_path / "amax", *more)
    assert " than w4afp8" in again.out or "be told from w4afp8" in again.out
    alone = audit(cli, folder, tmp_path / "amax", *more[:4], "--json").json
    assert "paired" not in alone and json.loads((two / "audit.json").read_text()) == alone
    assert "Against another candidate" not in (two / "audit.html").read_text()
    assert audit(cli, folder, "w4afp8", "--against", one).code == 2
    missing = audit(cli, folder, "w4afp8", "--out", tmp_path / "three", "--against", tmp_path)
    assert (missing.code, (tmp_path / "three").exists()) == (2, False)
