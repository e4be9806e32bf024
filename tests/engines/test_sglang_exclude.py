"""SGLang 0.5.20's own matching code, over our exclude lists: every plain module excluded, no expert."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from examples.shaped import kimi_k3
from tests.engines.conftest import constant, cut
from truecast.convert import Target, convert

QUANTIZATION = "sglang/srt/layers/quantization/"

# what models/kimi_k3.py of SGLang 0.5.20 builds with a quant_config, and under which prefix
KDA = ("fused_qkvg_proj", "qkv_proj", "g_proj", "b_proj", "f_a_proj", "f_b_proj", "o_proj")
MLA = ("fused_qkv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj", "g_proj")


def runtime_modules(config: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(modules that must be excluded, expert banks that must not)."""
    text = config["text_config"]
    kda = set(text["linear_attn_config"]["kda_layers"])
    plain, banks = ["lm_head"], []
    for layer in range(text["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        plain += [f"{prefix}self_attn.{name}" for name in (KDA if layer + 1 in kda else MLA)]
        if layer < text["first_k_dense_replace"]:
            plain += [prefix + "mlp.gate_up_proj", prefix + "mlp.down_proj"]
        else:
            plain += [prefix + "mlp.shared_experts.gate_up_proj", prefix + "mlp.shared_experts.down_proj"]
            banks.append(prefix + "mlp.experts")
    return plain, banks


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("k3")
    kimi_k3.make(folder / "source")
    for dialect in ("modelopt", "compressed-tensors"):
        convert(folder / "source", folder / dialect, Target("nvfp4", dialect))
    return {name: folder / name for name in ("modelopt", "compressed-tensors")}


def mapping(wheel: zipfile.ZipFile) -> dict[str, list[str]]:
    return dict(constant(wheel, "sglang/srt/models/kimi_k3.py", "packed_modules_mapping"))


def test_modelopt_ignore_list(sglang_wheel: zipfile.ZipFile, outputs: dict[str, Path]) -> None:
    scope: dict[str, Any] = {"re": re, "MappingProxyType": MappingProxyType}
    cut(
        sglang_wheel,
        QUANTIZATION + "utils.py",
        {"_module_path_match", "_FALLBACK_FUSED_SHARDS", "is_layer_skipped"},
        scope,
    )
    cut(sglang_wheel, QUANTIZATION + "modelopt_quant.py", {"is_layer_excluded"}, scope)
    config = json.loads((outputs["modelopt"] / "config.json").read_text())
    ignore = config["quantization_config"]["ignore"]
    assert 40 <= len(ignore) <= 60, "compact globs, not one entry a module"
    packed = mapping(sglang_wheel)
    reader = SimpleNamespace(exclude_modules=ignore, packed_modules_mapping=packed)
    plain, banks = runtime_modules(config)
    for module in plain:
        skipped = scope["is_layer_skipped"](module, ignore, packed)
        assert skipped or scope["is_layer_excluded"](reader, module), module
    for bank in banks:
        assert not scope["is_layer_excluded"](reader, bank), bank


def test_compressed_tensors_ignore_list(sglang_wheel: zipfile.ZipFile, outputs: dict[str, Path]) -> None:
    names = {"should_ignore_layer", "check_equal_or_regex_match", "_is_equal_or_regex_match"}
    scope: dict[str, Any] = {"re": re, "MappingProxyType": MappingProxyType}
    cut(sglang_wheel, QUANTIZATION + "compressed_tensors/utils.py", names, scope)
    config = json.loads((outputs["compressed-tensors"] / "config.json").read_text())
    ignore = config["quantization_config"]["ignore"]
    packed = mapping(sglang_wheel)
    plain, banks = runtime_modules(config)
    for module in plain:
        assert scope["should_ignore_layer"](module, ignore, packed), module
    for bank in banks:
        for leaf in ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"):
            assert not scope["should_ignore_layer"](f"{bank}.0.{leaf}", ignore, packed), bank
