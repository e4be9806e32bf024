"""Checks of a running server, on what real ones would say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.serve.doctor.made import check_of
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.running import CHECKS
from truecast.serve.server_info import ServerFacts
from truecast.serve.stored_model import StoredModel

USAGE = {"weight": 44.0, "kvcache": 24.0, "startup_available": 92.0, "token_capacity": 1, "graph": {"decode": 2.5}}
STATE: dict[str, Any] = {
    "memory_usage": USAGE,
    "effective_max_running_requests_per_dp": 64,
    "avg_spec_accept_length": 2.45,
}
SPECULATING = {"--speculative-algorithm": "DSPARK", "--speculative-num-draft-tokens": "3", "--tp-size": "32"}
PLAIN = ServerFacts(
    "http://10.0.0.1:30000", "sglang", "0.5.20", "k3", {"--disable-radix-cache": "", "--tp-size": "32"}, (STATE,),
    max_total_tokens=1_900_000,
)  # fmt: skip
DRAFTED = replace(PLAIN, arguments=SPECULATING)


def states(*several: dict[str, Any], **changes: Any) -> ServerFacts:
    return replace(DRAFTED, states=tuple({**STATE, **one} for one in (several or ({},))), **changes)


@pytest.mark.parametrize(
    ("id", "server", "status", "words"),
    [
        ("server.engine", PLAIN, "PASS", "sglang 0.5.20 serves k3"),
        ("server.engine", replace(PLAIN, engine="unknown", version=None), "UNKNOWN", "which engine"),
        ("server.accepted", PLAIN, "SKIP", "does not speculate"),
        (
            "server.accepted",
            DRAFTED,
            "PASS",
            "2.45 tokens a step were accepted on average since the start, of at most 3",
        ),
        ("server.accepted", states({}, {"avg_spec_accept_length": 1.05}), "WARN", "1.05 tokens a step"),
        ("server.accepted", states({"avg_spec_accept_length": None}), "UNKNOWN", "no draft"),
        ("server.requests", DRAFTED, "PASS", "64 requests"),
        ("server.requests", states({"effective_max_running_requests_per_dp": 48}), "WARN", "48 is what SGLang sets"),
        (
            "server.requests",
            states(
                {"effective_max_running_requests_per_dp": 48},
                launch_command="sglang serve --max-running-requests 48",
                arguments={**SPECULATING, "--max-running-requests": "48"},
            ),
            "PASS",
            "48 requests",
        ),
        (
            "server.requests",
            states({"effective_max_running_requests_per_dp": 40}, arguments={"--max-running-requests": "64"}),
            "WARN",
            "memory allows no more",
        ),
        ("server.requests", states({"effective_max_running_requests_per_dp": None}), "UNKNOWN", ""),
        ("server.radix-cache", PLAIN, "PASS", "--disable-radix-cache"),
        ("server.radix-cache", DRAFTED, "WARN", "too fast"),
        ("server.memory", PLAIN, "PASS", "21.5 left"),
        ("server.memory", states({"memory_usage": {**USAGE, "kvcache": 45.0}}), "WARN", "0.5 left"),
        ("server.memory", states({"memory_usage": {"weight": "x"}}), "UNKNOWN", ""),
        ("server.memory", replace(PLAIN, states=()), "UNKNOWN", "no internal_states"),
        ("server.memory", replace(PLAIN, engine="vllm"), "SKIP", "vllm does not tell"),
    ],
)
def test_checks(id: str, server: ServerFacts, status: str, words: str) -> None:
    verdict = check_of(CHECKS, id)(Ground(server=server))
    assert (verdict.status, words in verdict.evidence) == (status, True), verdict


def test_a_cache_smaller_than_the_context(k3: StoredModel) -> None:
    run = check_of(CHECKS, "server.memory")
    assert run(Ground(server=PLAIN, model=k3)).status == "PASS"
    small = run(Ground(server=replace(PLAIN, max_total_tokens=100_000), model=k3))
    assert small.status == "WARN" and f"{k3.context:,}" in small.evidence


@pytest.mark.parametrize(("share", "status"), [(1.02, "PASS"), (3.5, "WARN"), (0.5, "WARN")])
def test_weights_as_stored(k3: StoredModel, share: float, status: str) -> None:
    usage = {**USAGE, "weight": share * k3.weights.per_gpu(32) / (1 << 30)}
    run = check_of(CHECKS, "server.weights")
    assert run(Ground(server=states({"memory_usage": usage}), model=k3)).status == status
    assert run(Ground(server=PLAIN)).status == "SKIP"


def test_no_server() -> None:
    assert {str(check_of(CHECKS, check.id)(Ground()).status) for check in CHECKS} == {"SKIP"}
