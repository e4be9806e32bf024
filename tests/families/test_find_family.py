from __future__ import annotations

from typing import Any

import pytest

from truecast.families import find_family


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "kimi_k3"}, "kimi_k3"),
        ({"model_type": "other", "text_config": {"model_type": "kimi_linear"}}, "kimi_k3"),
        ({"model_type": "gpt_oss"}, "gpt_oss"),
        ({"model_type": "deepseek_v4"}, "deepseek_v4"),
        ({"model_type": "llama"}, "generic"),
        ({}, "generic"),
        ({"model_type": []}, "generic"),
        ({"model_type": {"a": 1}}, "generic"),
        ({"model_type": None, "text_config": None}, "generic"),
        ({"text_config": []}, "generic"),
        ({"text_config": {"model_type": [1]}}, "generic"),
    ],
)
def test_family_by_config_whatever_the_config_holds(config: dict[str, Any], name: str) -> None:
    assert find_family(config, ["a.weight"]).name == name
