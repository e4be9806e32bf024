from __future__ import annotations

from truecast.layouts import fp8_deepseek, w4afp8_sglang

NAMES = ["model.layers.0.self_attn.kv_b_proj", "lm_head"]


def test_sglang_w4afp8_names_its_modules_under_both_keys_that_readers_know() -> None:
    block = w4afp8_sglang.quantization_config(NAMES, True)
    assert block["quant_method"] == "w4afp8"
    assert block["ignored_layers"] == block["modules_to_not_convert"] == NAMES
    assert (block["group_size"], block["weight_block_size"]) == (128, [128, 128])
    assert "activation_scheme" not in block  # linear modules are dynamic, experts static
    assert (block["linear_activation_scheme"], block["moe_activation_scheme"]) == ("dynamic", "static")


def test_deepseek_fp8_says_what_its_tensors_are() -> None:
    block = fp8_deepseek.quantization_config(NAMES, False)
    assert (block["quant_method"], block["fmt"], block["activation_scheme"]) == ("fp8", "e4m3", "dynamic")
    assert block["weight_block_size"] == [fp8_deepseek.BLOCK, fp8_deepseek.BLOCK] == [128, 128]
    assert block["modules_to_not_convert"] == NAMES
