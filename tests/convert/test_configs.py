"""config.json, hf_quant_config.json and the index of an output, key by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from truecast import __version__
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert


def converted(source: Path, out: Path, target: Target) -> dict[str, Any]:
    convert(source, out, target)
    config: dict[str, Any] = json.loads((out / "config.json").read_text())
    return config


def test_modelopt_config_of_kimi_k3(sources: dict[str, Path], tmp_path: Path) -> None:
    config = converted(sources["kimi_k3"], tmp_path / "out", Target("nvfp4"))
    assert "quantization_config" not in config["text_config"], "the source's nested block must be gone"
    block = config["quantization_config"]
    assert set(block) == {
        "quant_method", "quant_algo", "format", "group_size", "kv_cache_quant_algo", "config_groups", "exclude_modules",
        "ignore",
    }  # fmt: skip
    assert block["quant_method"] == "modelopt"
    assert block["quant_algo"] == "NVFP4"
    assert block["format"] == "nvfp4-pack-quantized"
    assert block["group_size"] == 16
    assert block["kv_cache_quant_algo"] is None
    group = block["config_groups"]["group_0"]
    assert group["input_activations"] is None
    assert group["weights"] == {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    assert group["targets"] == ["Linear"]
    assert block["ignore"] == block["exclude_modules"]
    source = json.loads((sources["kimi_k3"] / "config.json").read_text())
    del source["text_config"]["quantization_config"]
    assert {k: v for k, v in config.items() if k != "quantization_config"} == source, "nothing else may change"


def test_activation_scales(sources: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = converted(sources["kimi_k3"], out, Target("nvfp4", activations=True))
    group = config["quantization_config"]["config_groups"]["group_0"]
    assert group["input_activations"] == {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    written = open_checkpoint(out)
    scales = [t for t in written.tensors.values() if t.name.endswith(".input_scale")]
    weights = [t for t in written.tensors.values() if t.name.endswith(".weight_scale_2")]
    assert len(scales) == len(weights) > 0
    for tensor in scales:
        assert (tensor.dtype, tensor.shape) == ("F32", ())
        data = (out / tensor.file).read_bytes()[tensor.start : tensor.end]
        assert data == b"\x00\x00\x80\x3f", "1.0"


def test_hf_quant_config_says_the_same(sources: dict[str, Path], tmp_path: Path) -> None:
    config = converted(sources["kimi_k3"], tmp_path / "out", Target("nvfp4"))
    document = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
    assert document == {
        "producer": {"name": "truecast", "version": __version__},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": 16,
            "exclude_modules": config["quantization_config"]["exclude_modules"],
        },
    }


def test_compressed_tensors_config(sources: dict[str, Path], tmp_path: Path) -> None:
    config = converted(sources["kimi_k3"], tmp_path / "out", Target("nvfp4", "compressed-tensors"))
    assert "quantization_config" not in config["text_config"]
    block = config["quantization_config"]
    assert block["quant_method"] == "compressed-tensors"
    assert block["format"] == "nvfp4-pack-quantized"
    assert block["quantization_status"] == "compressed"
    group = block["config_groups"]["group_0"]
    assert group["input_activations"] is None
    weights = group["weights"]
    assert (weights["num_bits"], weights["type"], weights["strategy"]) == (4, "float", "tensor_group")
    assert (weights["group_size"], weights["scale_dtype"]) == (16, "torch.float8_e4m3fn")
    assert all(entry.startswith("re:") and entry.endswith("$") for entry in block["ignore"])
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()


def test_compressed_tensors_activations(sources: dict[str, Path], tmp_path: Path) -> None:
    config = converted(sources["kimi_k3"], tmp_path / "o", Target("nvfp4", "compressed-tensors", activations=True))
    inputs = config["quantization_config"]["config_groups"]["group_0"]["input_activations"]
    assert (inputs["dynamic"], inputs["strategy"], inputs["group_size"]) == ("local", "tensor_group", 16)
    written = open_checkpoint(tmp_path / "o").tensors
    assert {t.shape for t in written.values() if t.name.endswith(".input_global_scale")} == {(1,)}


def test_deepseek_keeps_its_fp8_block(sources: dict[str, Path], tmp_path: Path) -> None:
    config = converted(sources["deepseek_v4"], tmp_path / "out", Target("nvfp4"))
    block = config["quantization_config"]
    assert config["expert_dtype"] == "fp4"
    assert (block["quant_method"], block["quant_algo"], block["moe_quant_algo"]) == ("fp8", "MIXED_PRECISION", "NVFP4")
    assert (block["group_size"], block["weight_block_size"]) == (16, [128, 128])
    assert {v["quant_algo"] for v in block["quantized_layers"].values()} == {"NVFP4"}
    assert all(name.endswith(".ffn.experts") and name.startswith("layers.") for name in block["quantized_layers"])
    assert "*mtp.*.ffn.experts" in block["ignore"], "the draft's experts stay MXFP4, as engines read them"


def test_bf16_has_no_quantization_config(sources: dict[str, Path], tmp_path: Path) -> None:
    config = converted(sources["kimi_k3"], tmp_path / "out", Target("bf16"))
    assert "quantization_config" not in config
    assert "quantization_config" not in config["text_config"]
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()


@pytest.mark.parametrize("name", ["kimi_k3", "gpt_oss", "deepseek_v4"])
def test_index_is_what_was_written(sources: dict[str, Path], tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    convert(sources[name], out, Target("nvfp4"))
    index = json.loads((out / "model.safetensors.index.json").read_text())
    written = open_checkpoint(out)  # holds index against headers in both directions
    assert index["metadata"] == {"total_size": sum(t.nbytes for t in written.tensors.values())}
    assert index["weight_map"] == {t.name: t.file for t in written.tensors.values()}
