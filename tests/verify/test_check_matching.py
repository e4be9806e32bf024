"""How engines read exclude lists. Every row was also asked of the engines' own functions (SGLang 0.5.20, vLLM 0.33.0)."""

from __future__ import annotations

import pytest

from truecast.verify.check.matching import CompressedTensors, SglangModelopt, VllmModelopt, bad_patterns, may_backtrack

LAYER = "model.layers.1."
BANK = LAYER + "mlp.experts"


@pytest.mark.parametrize(
    ("patterns", "name", "sglang", "vllm"),
    [
        (["lm_head"], "lm_head", True, True),
        (["lm_head"], "language_model.lm_head", True, True),
        (["self_attn"], LAYER + "self_attn.o_proj", True, True),
        ([LAYER[:-1]], "model.layers.11.mlp.down_proj", False, True),  # vLLM: a substring
        ([LAYER + "mlp.gate"], LAYER + "mlp.gate_up", False, True),
        (["*gate*"], LAYER + "mlp.gate_up", True, False),  # the star split off
        (["gate"], LAYER + "mlp.gate", True, True),
        (["*.mlp.*"], BANK, True, True),
        (["mlp.experts"], BANK, False, True),  # SGLang asks a bank's globs only
        (["experts"], BANK, True, True),  # ... but a single part counts as a glob
        ([BANK + ".3.w1"], BANK, False, True),
        (["*routed_expert_*"], LAYER + "block_sparse_moe.routed_expert_down_proj", True, False),  # the split star
        (["*routed_expert_down_proj*"], LAYER + "block_sparse_moe.routed_expert_down_proj", True, True),
        ([LAYER + "self_attn.q_a_proj"], "model.layers.7.self_attn.fused_qkv_a_proj_with_mqa", False, False),
        (["model.layers.9.self_attn.kv_a_proj_with_mqa"], LAYER + "self_attn.fused_qkv_a_proj_with_mqa", True, False),
        (["vision_tower*"], "vision_tower.blocks.0.wqkv", True, True),
    ],
)
def test_modelopt(patterns, name, sglang, vllm):
    assert SglangModelopt(patterns).hits(name) is sglang
    assert VllmModelopt(patterns, split=True).hits(name) is vllm


QKV = [LAYER + f"self_attn.{p}_proj" for p in "qkv"]


@pytest.mark.parametrize(
    ("patterns", "sglang", "vllm"),
    [
        (QKV, "excluded", "excluded"),
        (QKV[:2], "partial", "partial"),
        ([*QKV[:2], "*qkv_proj"], "partial", "partial"),
        (["*.q_proj", "*.k_proj", "*.v_proj"], "quantized", "quantized"),
        (["*qkv_proj"], "excluded", "excluded"),
        (["q_proj"], "partial", "quantized"),
        ([LAYER + "self_attn"], "excluded", "excluded"),
        ([], "quantized", "quantized"),
    ],
)
def test_modelopt_fused(patterns, sglang, vllm):
    assert SglangModelopt(patterns).fused(LAYER + "self_attn.qkv_proj", QKV) == sglang
    assert VllmModelopt(patterns, split=True).fused(LAYER + "self_attn.qkv_proj", QKV) == vllm


@pytest.mark.parametrize(
    ("patterns", "sglang", "vllm"),
    [
        (QKV, "excluded", "excluded"),
        (QKV[:2], "partial", "partial"),
        (["re:.*qkv_proj"], "quantized", "excluded"),
        (["re:.*(q|k)_proj"], "partial", "partial"),
        (["re:self_attn.*"], "quantized", "quantized"),
        ([LAYER + "self_attn.qkv_proj"], "excluded", "excluded"),
        (["q_proj", "k_proj", "v_proj"], "excluded", "quantized"),
    ],
)
def test_compressed_tensors_fused(patterns, sglang, vllm):
    name = LAYER + "self_attn.qkv_proj"
    assert CompressedTensors(patterns, "SGLang").fused(name, QKV) == sglang
    assert CompressedTensors(patterns, "vLLM").fused(name, QKV) == vllm


@pytest.mark.parametrize(
    ("pattern", "name", "sglang", "vllm"),
    [
        ("lm_head", "model.lm_head", True, False),  # SGLang: a dotted suffix too
        ("model.layers.1", LAYER + "mlp.gate", False, False),
        ("re:.*gate$", LAYER + "mlp.gate", True, True),
        ("re:mlp.*", LAYER + "mlp.gate", False, False),
    ],
)
def test_compressed_tensors(pattern, name, sglang, vllm):
    assert CompressedTensors([pattern], "SGLang").hits(name) is sglang
    assert CompressedTensors([pattern], "vLLM").hits(name) is vllm


def test_patterns_that_do_not_compile():
    assert bad_patterns(["*a(b", "*.gate"], "modelopt") == ["*a(b"]
    assert bad_patterns(["re:*.gate", "*plain", "re:.*"], "compressed-tensors") == ["re:*.gate"]


@pytest.mark.parametrize(
    ("glob", "name", "hit"),
    [
        ("a*b*c", "aXbXbXc", True),
        ("a*b*c", "aXcXb", False),
        ("a**c", "ac", True),
        ("*a*", "bab", True),
        ("a*a", "a", False),
        ("*", "x", True),
        ("a.*", "ab", False),
        ("a*b c#", "a-b c#", True),
    ],
)
def test_globs_of_sglang(glob, name, hit):
    assert SglangModelopt([glob]).hits(name) is hit


@pytest.mark.parametrize(
    ("regex", "slow"),
    [
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", False),
        (r"re:^model\.layers\.[0-3]\.(?:mlp)$", False),
        ("plain(a+)+", False),
        ("re:(a+)+", True),
        ("re:(a)*b", True),
        ("re:(?=a)b", True),
        ("re:.*a.*b.*c", True),
        ("re:" + "(a|a)" * 30, True),
    ],
)
def test_regexes_that_may_backtrack(regex, slow):
    assert may_backtrack(regex, "compressed-tensors") is slow
