"""Requests at a time and the share of memory, and what does not fit."""

from __future__ import annotations

import pytest

from tests.serve.launch.conftest import DSPARK, Launch
from truecast.errors import UsageError
from truecast.serve.launch.memory import MOST, TOKENS_A_STREAM
from truecast.serve.launch.plan import LaunchPlan


def values(plan: LaunchPlan) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in plan.arguments}


@pytest.mark.parametrize("topology", ["gh200:8x4", "h200:2x8", "h200:4x8", "h100:4x8", "b200:2x8", "b300:1x8"])
@pytest.mark.parametrize("draft", [None, DSPARK])
def test_each_request_has_room_to_think(launch: Launch, topology: str, draft: object) -> None:
    plan = launch("mxfp4", topology, draft=draft)
    found = values(plan)
    requests = int(found["--max-running-requests"] or 0)
    assert plan.fit.fits and plan.fit.kv_tokens >= requests * TOKENS_A_STREAM
    assert found["--max-mamba-cache-size"] == str(3 * requests)
    assert found["--cuda-graph-max-bs-decode"] == str(requests)
    assert 0.7 < float(found["--mem-fraction-static"] or 0) <= 0.91


def test_fewer_requests_where_memory_is_short(launch: Launch) -> None:
    plan = launch("mxfp4", "h100:4x8")
    assert values(plan)["--max-running-requests"] == "24"
    why = next(setting.why for setting in plan.arguments if setting.name == "--max-running-requests")
    assert "64 would have no room" in why


def test_a_model_that_does_not_fit(launch: Launch) -> None:
    with pytest.raises(UsageError) as raised:
        launch("mxfp4", "h200:1x8")
    text = str(raised.value)
    assert raised.value.exit_code == 2
    assert "does not fit on 8 H200" in text and "GB a GPU" in text and "it would on" in text and "h200:2x8" in text


def test_a_larger_share_is_tried_before_giving_up(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truecast.serve.launch.memory.fraction", lambda case: 0.55)
    plan = launch("mxfp4", "gh200:8x4")
    share = values(plan)["--mem-fraction-static"] or ""
    assert 0.55 < float(share) <= MOST
    assert "0.55, with which the model does not fit" in next(s.why for s in plan.arguments if s.value == share)


def test_the_latency_profile_drafts_deeper_for_fewer_streams(launch: Launch) -> None:
    many, few = (values(launch("mxfp4", "gh200:8x4", draft=DSPARK, profile=p)) for p in ("throughput", "latency"))
    changed = {name for name in many if many[name] != few[name]}
    assert changed == {
        "--max-running-requests", "--cuda-graph-max-bs-decode", "--max-mamba-cache-size", "--speculative-dspark-block-size",
    }  # fmt: skip
    assert (few["--max-running-requests"], few["--speculative-dspark-block-size"]) == ("16", "7")
