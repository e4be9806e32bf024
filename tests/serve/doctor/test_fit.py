"""Memory of the two documents' deployments, and of ones that do not fit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.serve.doctor.made import check_of
from truecast.serve.doctor.fit import CHECKS
from truecast.serve.doctor.ground import Ground
from truecast.serve.stored_model import StoredModel
from truecast.serve.topology import read_topology

SEED = {
    "--tp-size": "32",
    "--ep-size": "32",
    "--kv-cache-dtype": "fp8_e4m3",
    "--mamba-ssm-dtype": "float32",
    "--mem-fraction-static": "0.82",
    "--max-running-requests": "64",
    "--cuda-graph-max-bs-decode": "64",
    "--max-mamba-cache-size": "192",
    "--chunked-prefill-size": "4096",
    "--speculative-algorithm": "DSPARK",
    "--speculative-dspark-block-size": "2",
    "--enable-linear-replayssm-spec": "",
}
SMALL = {"--tp-size": "8", "--ep-size": "8"}


@pytest.mark.parametrize(
    ("topology", "arguments", "status", "words"),
    [
        ("gh200:8x4", SEED, "PASS", "KV cache of"),
        ("h200:1x8", SMALL, "FAIL", "short by"),
        ("h200:2x8", {"--tp-size": "16", "--ep-size": "16"}, "PASS", "H200"),
        (
            "h200:2x8",
            {"--tp-size": "16", "--ep-size": "16", "--mem-fraction-static": "0.97"},
            "WARN",
            "rule would leave",
        ),
        ("h200:2x8", {"--tp-size": "16", "--ep-size": "16", "--max-total-tokens": "9000000"}, "FAIL", "short by"),
    ],
)
def test_fit(k3: StoredModel, topology: str, arguments: dict[str, str], status: str, words: str) -> None:
    verdict = check_of(CHECKS, "memory.fit")(Ground(model=k3, topology=read_topology(topology), arguments=arguments))
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


def test_it_says_where_it_would_fit(k3: StoredModel) -> None:
    ground = Ground(model=k3, topology=read_topology("h200:1x8"), arguments=SMALL)
    assert "it would fit on" in check_of(CHECKS, "memory.fit")(ground).remedy


def test_what_is_needed(k3: StoredModel) -> None:
    run = check_of(CHECKS, "memory.fit")
    assert run(Ground(arguments=SMALL)).evidence == "not given: checkpoint, topology"
    full = Ground(model=k3, topology=read_topology("h200:2x8"), arguments=SMALL)
    assert run(replace(full, arguments=None)).status == "SKIP"
    assert run(replace(full, server=SimpleNamespace())).status == "SKIP"


def test_attention_that_is_not_known(k3: StoredModel) -> None:
    model = replace(k3, request=None)
    ground = Ground(model=model, topology=read_topology("h200:4x8"), arguments={"--tp-size": "32", "--ep-size": "32"})
    assert check_of(CHECKS, "memory.fit")(ground).status == "UNKNOWN"


@pytest.mark.parametrize("text", ["x", "1.5", "nan"])
def test_a_fraction_that_is_none(k3: StoredModel, text: str) -> None:
    from truecast.serve.doctor.doctor import doctor

    arguments = {**SMALL, "--mem-fraction-static": text}
    report = doctor(Ground(model=k3, topology=read_topology("h200:1x8"), arguments=arguments), tuple(CHECKS))
    assert [f.status for f in report.findings] == ["UNKNOWN"]
