"""Sizes that the checkpoint, the nodes and the GPUs allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.conftest import SGLANG_VERSIONS, Release
from tests.serve.doctor.made import check_of
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.parallelism import CHECKS, GATE
from truecast.serve.installed import Installation
from truecast.serve.parallel import Parallel
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import read_topology


def sizes(tp: int, ep: int = 1, nodes: int = 1, **more: str) -> dict[str, str]:
    named = {f"--{name.replace('_', '-')}": value for name, value in more.items()}
    return {"--tp-size": str(tp), "--ep-size": str(ep), "--nnodes": str(nodes), **named}


@pytest.mark.parametrize(
    ("arguments", "topology", "status", "words"),
    [
        (sizes(32, 32, 8), "gh200:8x4", "PASS", "on gh200:8x4"),
        (sizes(32, 32, 8), "gh200:4x4", "FAIL", "has less"),
        (sizes(32, 32, 4), "gh200:8x4", "FAIL", "has less"),
        (sizes(16, 16, 2), "h200:4x8", "PASS", "room for 2 copies"),
        (sizes(16, 3, 2), None, "FAIL", "EP does not divide TP"),
        (sizes(16, 32, 2), None, "FAIL", "EP does not divide TP"),
        (sizes(16, 16, 3), None, "FAIL", "no whole number a node"),
        (sizes(8, 8, 2, pp_size="2"), "h200:2x8", "PASS", "--pp-size 2"),
        (None, "h200:2x8", "SKIP", ""),
    ],
)
def test_ranks(arguments: dict[str, str] | None, topology: str | None, status: str, words: str) -> None:
    ground = Ground(arguments=arguments, topology=read_topology(topology) if topology else None)
    verdict = check_of(CHECKS, "parallel.ranks")(ground)
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (sizes(32, 32), "PASS", "each expert over 1, attention over 32"),
        (sizes(16, 1), "WARN", "kernels pad each part"),
        (sizes(24, 1), "PASS", ""),
        (sizes(12, 12), "FAIL", "896 experts are not divided by 12"),
        (sizes(64, 64), "FAIL", "heads and FP8 tiles allow 1, 2, 3"),
        (sizes(64, 64, dp_size="2", enable_dp_attention=""), "PASS", "attention over 32"),
        (sizes(64, 1), "FAIL", "scale groups of mxfp4"),
    ],
)
def test_split(k3: StoredModel, arguments: dict[str, str], status: str, words: str) -> None:
    verdict = check_of(CHECKS, "parallel.split")(Ground(model=k3, arguments=arguments))
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


def test_w4afp8_loses_its_interleaving(k3: StoredModel) -> None:
    """3072 / 8 is three groups of 128: scales come one by one instead of by four."""
    narrow = Parallel(tp=(1, 2, 4, 8, 24), unpadded=(1, 2, 6), ep=k3.parallel.ep, dense=k3.parallel.dense)
    model = replace(k3, format="w4afp8", dialect="sglang", parallel=narrow)
    verdict = check_of(CHECKS, "parallel.split")(Ground(model=model, arguments=sizes(8)))
    assert verdict.status == "WARN" and "interleaved by four" in verdict.evidence
    assert verdict.remedy == "--tp-size 8 --ep-size 8"
    assert check_of(CHECKS, "parallel.split")(Ground(model=model, arguments=sizes(2))).status == "PASS"


@pytest.mark.parametrize(
    ("version", "ranks", "status"),
    [(v, r, "FAIL" if r == 96 and v != "0.5.23" else "PASS") for v in SGLANG_VERSIONS for r in (32, 96)],
)
def test_one_head_a_rank(k3: StoredModel, version: str, ranks: int, status: str) -> None:
    installation = Installation(Path("/none"), {"sglang": version}, Release.of(version).sources)
    ground = Ground(model=k3, arguments=sizes(ranks), installation=installation)
    verdict = check_of(CHECKS, "parallel.heads")(ground)
    assert verdict.status == status
    if status == "FAIL":
        line = int(verdict.evidence.partition("fused_norm_gate.py:")[2].split()[0])
        assert "g.reshape" in Release.of(version).sources(GATE).splitlines()[line - 1]


def test_one_head_without_an_installation(k3: StoredModel) -> None:
    assert check_of(CHECKS, "parallel.heads")(Ground(model=k3, arguments=sizes(96))).status == "FAIL"
    dense = replace(k3, text={})
    assert check_of(CHECKS, "parallel.heads")(Ground(model=dense, arguments=sizes(96))).status == "SKIP"
