"""Drafts: which are known, how deep they draft, what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.launch.conftest import DSPARK, Launch
from truecast.errors import InputError, UsageError
from truecast.serve.launch.case import Draft
from truecast.serve.launch.draft import read_draft
from truecast.serve.launch.plan import LaunchPlan

CONFIG = {"architectures": ["Qwen3DSparkModel"], "hidden_size": 8, "dflash_config": {"block_size": 7}}


def values(plan: LaunchPlan) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in plan.arguments}


@pytest.mark.parametrize(
    ("topology", "profile", "depth"),
    [("gh200:8x4", "throughput", "2"), ("gh200:8x4", "latency", "7"), ("b300:1x8", "throughput", "7")],
)
def test_depth(launch: Launch, topology: str, profile: str, depth: str) -> None:
    found = values(launch("mxfp4", topology, draft=DSPARK, profile=profile))
    assert found["--speculative-dspark-block-size"] == depth
    assert ("--speculative-draft-attention-backend" in found) == (topology == "gh200:8x4")


@pytest.mark.parametrize(
    "config",
    [{"dspark_block_size": 4}, {"block_size": 4}, {"dspark_config": {"block_size": 4}}, {"dflash_config": {"block_size": 4}}],
)  # fmt: skip
def test_no_deeper_than_the_draft(launch: Launch, config: dict[str, Any]) -> None:
    plan = launch("mxfp4", "b300:1x8", draft=Draft("/draft", {"architectures": ["DSparkDraftModel"], **config}, 10**9))
    assert values(plan)["--speculative-dspark-block-size"] == "4"
    assert any("gives 4 tokens at once" in note for note in plan.notes)


def test_without_a_draft_there_is_none(launch: Launch) -> None:
    assert not [name for name in values(launch("mxfp4", "h200:2x8")) if "speculative" in name or "replay" in name]


def test_a_draft_takes_memory(launch: Launch) -> None:
    plain, drafted = (launch("mxfp4", "gh200:8x4", draft=draft).fit for draft in (None, DSPARK))
    assert drafted.parts["draft model"] > 0 and drafted.kv_tokens < plain.kv_tokens


def test_other_drafts(launch: Launch) -> None:
    eagle = Draft("/eagle", {"architectures": ["LlamaForCausalLMEagle3"]})
    with pytest.raises(UsageError, match="/eagle: is no DSpark draft: its architecture is LlamaForCausalLMEagle3"):
        launch("mxfp4", "gh200:8x4", draft=eagle)
    with pytest.raises(UsageError, match="is not stated"):
        launch("mxfp4", "gh200:8x4", draft=Draft("/none", {}))


def test_reading_a_draft(tmp_path: Path, write_checkpoint: Callable[..., Path]) -> None:
    folder = write_checkpoint(
        tmp_path / "draft", {"model.safetensors": {"fc.weight": ("BF16", (8, 8), bytes(128))}}, CONFIG
    )
    draft = read_draft(str(folder))
    assert (draft.path, draft.config, draft.bytes) == (str(folder), CONFIG, 128)
    assert read_draft("RadixArk/Kimi-K3-DSpark") == DSPARK
    with pytest.raises(UsageError, match="no such draft model"):
        read_draft("/no/such/folder")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no"):
        read_draft(str(tmp_path / "empty"))
