"""Facts of model families, as data: fused twins, name aliases, fused runtime names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from truecast.families.base import Family
from truecast.families.deepseek_v4 import DEEPSEEK_V4
from truecast.families.generic import GENERIC
from truecast.families.gpt_oss import GPT_OSS
from truecast.families.kimi_k3 import KIMI_K3

FAMILIES: tuple[Family, ...] = (KIMI_K3, GPT_OSS, DEEPSEEK_V4)


def find_family(config: Mapping[str, Any], names: Iterable[str]) -> Family:
    """The family of a checkpoint: by ``model_type`` (also that of ``text_config``), else by a telling tensor name.

    The generic family where none fits.
    """
    text = config.get("text_config")
    named = [config.get("model_type"), text.get("model_type") if isinstance(text, Mapping) else None]
    types = {name if isinstance(name, str) else None for name in named}
    for family in FAMILIES:
        if types & family.model_types:
            return family
    if types == {None}:
        for name in names:
            for family in FAMILIES:
                if family.telling_name.search(name):
                    return family
    return GENERIC


__all__ = ["DEEPSEEK_V4", "FAMILIES", "GENERIC", "GPT_OSS", "KIMI_K3", "Family", "find_family"]
