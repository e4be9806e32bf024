from __future__ import annotations

import pytest

from truecast.families import DEEPSEEK_V4, GENERIC, GPT_OSS, KIMI_K3, Family
from truecast.families.base import becomes_fp8


@pytest.mark.parametrize(
    ("family", "leaves"),
    [
        (KIMI_K3, {"q_proj", "k_proj", "v_proj", "g_proj", "o_proj"}),
        (GPT_OSS, {"q_proj", "k_proj", "v_proj", "o_proj"}),
        (GENERIC, {"q_proj", "k_proj", "v_proj", "o_proj"}),
        (DEEPSEEK_V4, set()),
    ],
)
@pytest.mark.parametrize("prefix", ["model.layers.3.", "language_model.model.layers.60.", "layers.0."])
def test_attention_that_becomes_fp8(family: Family, leaves: set[str], prefix: str) -> None:
    tried = {*"qkvgob"} | {"q_a", "q_b", "kv_a", "kv_b", "f_a", "f_b"}
    assert {f"{x}_proj" for x in tried if becomes_fp8(family, f"{prefix}self_attn.{x}_proj")} == leaves


@pytest.mark.parametrize("family", [KIMI_K3, GPT_OSS, GENERIC, DEEPSEEK_V4])
@pytest.mark.parametrize(
    "module",
    [
        "vision_tower.encoder.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.indexer.q_proj",
        "model.layers.0.mlp.shared_experts.o_proj",
        "lm_head",
    ],
)
def test_what_stays_as_it_is(family: Family, module: str) -> None:
    assert not becomes_fp8(family, module)
