"""From documents to a verified, calibrated checkpoint and its audit, as a user does it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.test_audit import write_corpus
from tests.models import k3_checkpoint
from truecast.audit import calibrate as calibrating
from truecast.audit.memory import TILE_TOKENS
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.errors import RefusedError
from truecast.layouts.calibration import document_sha256, open_calibration
from truecast.models import open_model
from truecast.models.generate import logits

Cli = Callable[..., Any]


def documents(seed: int, lengths: list[int]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"id": f"d{i}", "tokens": rng.integers(0, 320, n).tolist()} for i, n in enumerate(lengths)]


CALIBRATED, AUDITED = documents(1, [40, 7, 23]), documents(2, [20, 9, 30])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``k3`` and two corpora without a document in common."""
    folder = tmp_path_factory.mktemp("calibrate")
    source = k3_checkpoint.make(folder / "k3")
    write_corpus(folder / "calibration.jsonl", source, *CALIBRATED)
    write_corpus(folder / "docs.jsonl", source, *AUDITED)
    return folder


def calibrate(cli: Cli, folder: Path, out: Path, *more: object) -> Any:
    return cli(
        "calibrate", folder / "k3", "--corpus", folder / "calibration.jsonl", "--out", out, "--device", "cpu", *more
    )


class Inputs:
    """Taps that keep everything."""

    def __init__(self) -> None:
        self.seen: dict[str, list[torch.Tensor]] = {}

    def input(self, module: str, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        self.seen.setdefault(module, []).append(x.double())
        return x

    def kv(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        return x


def test_it_holds_what_the_whole_model_says(folder: Path, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    result = calibrate(cli, folder, out, "--hessian", "--json", "--quiet").json
    model, taps = open_model(folder / "k3", dtype=torch.float64), Inputs()
    for document in CALIBRATED:
        logits(model, torch.tensor(document["tokens"]), taps=taps)
    found = open_calibration(out)
    assert found.sha256 == result["sha256"]
    assert found.source == open_checkpoint(folder / "k3").fingerprint()
    assert found.documents == {d["id"]: document_sha256(d["tokens"]) for d in CALIBRATED}
    assert found.tokens == result["tokens"] == 70
    assert result["modules"] == 3 * 6 * 3 == result["hessians"]
    assert set(result["never_routed"]) == found.never_routed
    assert taps.seen.keys() | found.never_routed == {
        n.removesuffix(".input_amax") for n in found.tensors if "amax" in n
    }
    for module, parts in taps.seen.items():
        x = torch.cat(parts).numpy()
        assert found.amax(module) == pytest.approx(np.abs(x).max(), rel=1e-4)
        np.testing.assert_allclose(found.second_moment(module, 128), (x**2).mean(0), rtol=1e-3)
        np.testing.assert_allclose(found.hessian(module, 128), x.T @ x / len(x), atol=1e-4 * (x**2).mean(0).max())
    assert result["read"]["bytes"] <= result["read"]["checkpoint_bytes"]


def test_tiles_memory_and_limit(folder: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, again = (open_calibration_of(cli, folder, tmp_path / name) for name in "ab")
    assert whole.sha256 == again.sha256
    short = open_calibration_of(cli, folder, tmp_path / "c", "--limit", 1)
    assert (list(short.documents), short.tokens) == (["d0"], 40)
    refused = calibrate(cli, folder, tmp_path / "d", "--memory", "1MB")
    assert refused.code == 3
    assert "the smallest that works is" in refused.err
    monkeypatch.setitem(TILE_TOKENS, "cpu", 8)
    tiled = open_calibration_of(cli, folder, tmp_path / "e")
    assert tiled.never_routed == whole.never_routed
    for name in (n.removesuffix(".input_amax") for n in whole.tensors if n.endswith(".input_amax")):
        assert tiled.amax(name) == pytest.approx(float(whole.amax(name)), rel=1e-4)
        np.testing.assert_allclose(tiled.second_moment(name, 128), whole.second_moment(name, 128), rtol=1e-3)


def open_calibration_of(cli: Cli, folder: Path, out: Path, *more: object) -> Any:
    assert calibrate(cli, folder, out, *more).code == 0
    return open_calibration(out)


def test_an_expert_without_tokens(folder: Path, cli: Cli, tmp_path: Path) -> None:
    source = k3_checkpoint.make(tmp_path / "k3")
    name = next(
        n
        for n in open_checkpoint(source).tensors
        if n.endswith("layers.1.block_sparse_moe.gate.e_score_correction_bias")
    )
    k3_checkpoint.rewrite(source, name, np.array([0, 0, -9, 0, 0, 0], np.float32))
    write_corpus(tmp_path / "calibration.jsonl", source, *CALIBRATED)
    result = calibrate(cli, tmp_path, tmp_path / "c.safetensors", "--json").json
    missed = [n for n in result["never_routed"] if ".layers.1." in n]
    assert sorted(n.rsplit(".experts.")[1] for n in missed) == ["2.w1", "2.w2", "2.w3"]
    found = open_calibration(tmp_path / "c.safetensors")
    others = [missed[0].replace("experts.2.", f"experts.{e}.") for e in (0, 1, 3, 4, 5)]
    assert found.amax(missed[0]) == max(found.amax(n) for n in others)
    told = calibrate(cli, tmp_path, tmp_path / "again.safetensors").out
    assert "saw no token" in told


@pytest.mark.parametrize("rounding", ["data-free", "diagonal", "gptq"])
def test_calibrate_convert_verify_audit(rounding: str, folder: Path, cli: Cli, tmp_path: Path) -> None:
    file, cast = tmp_path / "c.safetensors", tmp_path / "cast"
    assert calibrate(cli, folder, file, *(["--hessian"] if rounding == "gptq" else [])).code == 0
    options = ("--to", "w4afp8", "--calibration", file, "--rounding", rounding, "--jobs", 1)
    assert cli("convert", folder / "k3", cast, *options).code == 0
    assert cli("verify", folder / "k3", cast, "--calibration", file, "--jobs", 1).code == 0
    audit = (
        "audit",
        folder / "k3",
        cast,
        "--device",
        "cpu",
        "--floor-seeds",
        0,
        "--activations",
        "fp8-tensor",
        "--json",
    )
    assert cli(*audit, "--corpus", folder / "docs.jsonl").json["kl"]["mean"] > 0
    renamed = [*AUDITED[:2], {**CALIBRATED[1], "id": "another"}]
    refused = cli(*audit, "--corpus", write_corpus(tmp_path / "shared.jsonl", folder / "k3", *renamed))
    assert refused.code == 2
    assert "was calibrated on 1 of these 3 documents: 'another'" in refused.json["error"]


def test_documents_are_remembered_from_cast_to_cast(folder: Path, cli: Cli, tmp_path: Path) -> None:
    """What a calibrated checkpoint is converted to was fitted to the same documents."""
    file, source = tmp_path / "c.safetensors", folder / "k3"
    assert calibrate(cli, folder, file).code == 0
    convert(source, tmp_path / "1", Target("w4afp8", calibration=file), jobs=1)
    convert(tmp_path / "1", tmp_path / "2", Target("w4afp8", dialect="compressed-tensors"), jobs=1)
    convert(tmp_path / "2", tmp_path / "3", Target("bf16", allow_inexact=True), jobs=1)
    for cast in ("2", "3"):
        refused = cli("audit", source, tmp_path / cast, "--corpus", folder / "calibration.jsonl", "--device", "cpu")
        assert refused.code == 2
        assert "was calibrated on 3 of these 3 documents" in refused.err


def test_a_checkpoint_that_changes_while_it_is_calibrated(folder: Path, tmp_path: Path) -> None:
    source = k3_checkpoint.make(tmp_path / "k3")
    corpus = write_corpus(tmp_path / "calibration.jsonl", source, *CALIBRATED)

    def change(stage: str, done: int, total: int) -> None:
        for shard in source.glob("*.safetensors"):
            os.utime(shard, ns=(1, 1))

    with pytest.raises(RefusedError, match="changed while it was read"):
        calibrating.calibrate(str(source), corpus, tmp_path / "c", device="cpu", progress=change)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("told", [{"sha256": "00"}, {"document_sha256": []}, {"document_sha256": ["A" * 64]}])
def test_a_manifest_that_hides_its_documents(folder: Path, cli: Cli, tmp_path: Path, told: dict[str, Any]) -> None:
    cast = tmp_path / "cast"
    convert(folder / "k3", cast, Target("w4afp8"), jobs=1)
    manifest = json.loads((cast / "truecast.json").read_text())
    manifest["int4"]["calibration"] = told
    (cast / "truecast.json").write_text(json.dumps(manifest))
    refused = cli("audit", folder / "k3", cast, "--corpus", folder / "docs.jsonl", "--device", "cpu")
    assert refused.code == 2
    assert "does not say which documents" in refused.err


def test_what_is_refused(folder: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "c.safetensors"
    monkeypatch.setattr(calibrating, "MAX_HESSIAN_BYTES", 1_000_000)
    outcome = calibrate(cli, folder, out, "--hessian")
    assert outcome.code == 3
    assert "the Hessians of 54 matrices would take 0.0 GB" in outcome.err
    out.write_text("mine")
    outcome = calibrate(cli, folder, out)
    assert (outcome.code, out.read_text()) == (3, "mine")
    assert calibrate(cli, folder, tmp_path / "none" / "c").code == 2
    convert(folder / "k3", tmp_path / "plain", Target("bf16"), jobs=1)
    outcome = cli("calibrate", tmp_path / "plain", "--corpus", folder / "calibration.jsonl", "--out", tmp_path / "x")
    assert outcome.code == 2
    assert "has no quantized matrix" in outcome.err
    bad = write_corpus(tmp_path / "bad.jsonl", folder / "k3", {"id": "a", "tokens": [1, 320]})
    outcome = cli("calibrate", folder / "k3", "--corpus", bad, "--out", tmp_path / "x")
    assert outcome.code == 2
    assert not (tmp_path / "x").exists()
