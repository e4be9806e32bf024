"""Findings about quantization_config and exclude lists."""

from __future__ import annotations

import json
import time

import pytest
from checkmaking import ATTENTION, GLOBS, K3_IGNORE, REGEXES, Made, kimi, moe

from truecast.layouts import LAYOUTS
from truecast.verify.check import check


@pytest.fixture
def made(tmp_path):
    return moe(tmp_path / "modelopt")


@pytest.fixture
def packed(tmp_path):
    return moe(tmp_path / "packed", "nvfp4-compressed-tensors")


def summary(made: Made) -> set[tuple[str, str]]:
    return {(f.id, f.severity) for f in made.check().findings}


def modules(made: Made, rule: str) -> set[str | None]:
    return {f.place.module for f in made.check().findings if f.id == rule}


# --- where the block stands, and whether its copies agree


def test_no_config_at_all(made):
    made.config, made.hf_quant = {}, None
    assert summary(made) == {("config-missing", "warning")}


def test_no_quantization_config(made):
    del made.config["quantization_config"]
    made.hf_quant = None
    assert summary(made) == {("config-quantization-missing", "error")}


def test_block_only_in_hf_quant_config(tmp_path):
    made = moe(tmp_path / "m", input_scale=True)
    del made.config["quantization_config"]
    assert summary(made) == {("config-only-hf-quant", "warning")}


@pytest.mark.parametrize(("beside", "severity"), [(False, "error"), (True, "warning")])
def test_modelopt_block_nested_only(made, beside, severity):
    made.config["text_config"] = {"quantization_config": made.config.pop("quantization_config")}
    if not beside:
        made.hf_quant = None
    assert summary(made) == {("config-nested", severity)}


def test_compressed_tensors_block_may_be_nested(packed):
    packed.config["text_config"] = {"quantization_config": packed.config.pop("quantization_config")}
    assert not packed.check().findings


@pytest.mark.parametrize(
    ("key", "value"),
    [("quant_algo", "FP8"), ("group_size", 32), ("kv_cache_quant_algo", "FP8"), ("exclude_modules", [])],
)
def test_two_files_contradict(made, key, value):
    made.hf_quant["quantization"][key] = value
    assert summary(made) == {("config-contradiction", "error")}


def test_two_lists_of_one_block_contradict(made):
    made.block["exclude_modules"] = GLOBS[1:]
    assert summary(made) == {("config-contradiction", "error")}


def test_nested_block_contradicts(made):
    made.config["text_config"] = {"quantization_config": {"quant_method": "compressed-tensors"}}
    assert summary(made) == {("config-contradiction", "error")}


def test_hf_quant_config_is_no_json(made):
    folder = made.write()
    (folder / "hf_quant_config.json").write_text("{")
    assert check(folder).totals == {"config-contradiction": 1}


def test_method_of_another_layout(packed):
    packed.block["quant_method"] = "gptq"
    assert summary(packed) == {("config-method", "error")}


def test_algo_of_another_layout(made):
    made.block["quant_algo"] = made.hf_quant["quantization"]["quant_algo"] = "FP8"
    assert summary(made) == {("config-method", "error")}


def test_format_of_another_layout(packed):
    packed.block["format"] = packed.block["config_groups"]["group_0"]["format"] = "mxfp4-pack-quantized"
    assert summary(packed) == {("config-method", "error")}


def test_nvfp4_declared_of_a_plain_model(made):
    made.drop(r"\.experts\.")
    assert ("config-method", "error") in summary(made)


def test_group_size(made, packed):
    made.block["group_size"] = made.hf_quant["quantization"]["group_size"] = 32
    assert summary(made) == {("config-group-size", "error")}
    packed.block["config_groups"]["group_0"]["weights"]["group_size"] = 32
    assert summary(packed) == {("config-group-size", "error")}


# --- exclude lists


def test_list_under_a_key_that_sglang_does_not_read(made):
    del made.block["ignore"]
    assert summary(made) == {("exclude-key", "error")}


def test_invalid_regex(packed):
    packed.exclude([*REGEXES, "re:*.gate"])
    assert summary(packed) == {("exclude-invalid", "error")}


@pytest.mark.parametrize("pattern", ["re:vision_tower.*", "visual"])
def test_pattern_matches_nothing(packed, pattern):
    packed.exclude([*REGEXES, pattern])
    assert summary(packed) == {("exclude-matches-nothing", "warning")}


def test_pattern_anchored_at_the_wrong_prefix(packed):
    packed.exclude([*REGEXES, "re:self_attn.*"])
    assert summary(packed) == {("exclude-matches-nothing", "warning")}


@pytest.mark.parametrize("pattern", ["*qkv_proj", "model.layers.1.self_attn", "layers.0.mlp.gate", "*.gate_up_proj"])
def test_aliases_fused_names_and_parents_do_match(made, pattern):
    made.exclude([*GLOBS, pattern])
    if pattern == "*.gate_up_proj":
        made.plain("model.layers.0.mlp.shared_experts.gate_proj")
        made.plain("model.layers.0.mlp.shared_experts.up_proj")
    assert not made.check().findings


@pytest.mark.parametrize("pattern", ["*.mlp.*", "*experts*", "model.layers.1.mlp.experts", "model.layers.1"])
def test_modelopt_pattern_hits_the_bank(made, pattern):
    made.exclude([*GLOBS, pattern])
    report = made.check()
    assert "exclude-hits-quantized" in report.totals and not report.ok
    assert pattern in next(f.message for f in report.findings if f.id == "exclude-hits-quantized")


def test_vllm_takes_a_plain_name_as_substring(tmp_path):
    made = moe(tmp_path / "m")
    for shard in made.shards:  # layer 1 becomes layer 10, which "model.layers.1" is part of
        for name in list(shard):
            shard[name.replace("layers.1.", "layers.10.")] = shard.pop(name)
    made.exclude([*GLOBS, "model.layers.1"])
    report = made.check()
    assert any("in vLLM" in f.message for f in report.findings if f.id == "exclude-hits-quantized")


def test_one_expert_listed_excludes_the_bank_in_vllm(made):
    made.exclude([*GLOBS, "model.layers.1.mlp.experts.2.up_proj"])
    assert "model.layers.1.mlp.experts" in modules(made, "exclude-hits-quantized")


def test_quantized_head_excluded(made):
    made.drop("lm_head")
    made.packed("lm_head", "nvfp4-modelopt", 1)
    assert summary(made) == {("exclude-hits-quantized", "error")}


@pytest.mark.parametrize("pattern", ["re:.*gate_proj", r"re:.*down_proj$"])
def test_compressed_tensors_pattern_hits_the_probe(packed, pattern):
    packed.exclude([*REGEXES, pattern])
    assert summary(packed) == {("exclude-hits-quantized", "error")}


@pytest.mark.parametrize("pattern", [r"re:.*experts\.2\.w1", r"re:.*experts\.[12]\.w1", r"re:.*experts\.\d\.w1"])
def test_pattern_for_a_numbered_expert_is_alive(tmp_path, pattern):
    made = moe(tmp_path / "m", "nvfp4-compressed-tensors")
    for shard in made.shards:
        for name in list(shard):
            shard[name.replace("gate_proj", "w1")] = shard.pop(name)
    made.exclude([*REGEXES, pattern])
    assert "exclude-matches-nothing" not in made.check().totals
    made.exclude([*REGEXES, r"re:.*experts\.9\.w1"])
    assert "exclude-matches-nothing" in made.check().totals


def test_router_not_excluded(made, packed):
    made.exclude([p for p in GLOBS if "gate" not in p])
    assert summary(made) == {("exclude-misses-plain", "error")}
    assert modules(made, "exclude-misses-plain") == {f"model.layers.{n}.mlp.gate" for n in (0, 1)}
    packed.exclude([p for p in REGEXES if "gate" not in p])
    assert modules(packed, "exclude-misses-plain") == {f"model.layers.{n}.mlp.gate" for n in (0, 1)}


def test_mtp_layer_not_excluded(made):
    made.plain("model.layers.2.eh_proj", shard=1)
    for expert in range(2):
        made.plain(f"model.layers.2.mlp.experts.{expert}.up_proj", shard=1)
    assert modules(made, "exclude-misses-plain") == {"model.layers.2.eh_proj", "model.layers.2.mlp.experts"}


def test_embedding_not_excluded(made, packed):
    made.exclude([p for p in GLOBS if "embed" not in p])
    assert summary(made) == {("exclude-misses-embedding", "warning")}
    assert not packed.check().findings  # an embedding is no Linear


def test_globs_over_members_miss_the_fused_module(made):
    made.exclude([*GLOBS[1:], *(f"*.self_attn.{leaf}" for leaf in ATTENTION)])
    assert modules(made, "exclude-misses-plain") == {f"model.layers.{n}.self_attn.qkv_proj" for n in (0, 1)}


def test_all_members_listed_by_name_cover_the_fused_module(made):
    names = [f"model.layers.{n}.self_attn.{leaf}" for n in (0, 1) for leaf in ATTENTION]
    made.exclude([*GLOBS[1:], *names])
    assert not made.check().findings


def test_fused_module_excluded_in_part(made, packed):
    names = [f"model.layers.{n}.self_attn.{leaf}" for n in (0, 1) for leaf in ATTENTION if leaf != "v_proj"]
    made.exclude([*GLOBS[1:], *names])
    assert summary(made) == {("fused-partial", "error")}
    packed.exclude([*REGEXES[1:], "re:.*(q|k|o)_proj$"])
    assert ("fused-partial", "error") in summary(packed)


def test_fused_module_quantized_in_part(made):
    made.drop(r"layers\.0\.self_attn\.v_proj")
    made.packed("model.layers.0.self_attn.v_proj", "nvfp4-modelopt", 0)
    assert ("fused-partial", "error") in summary(made)


def test_published_kimi_k3_has_warnings_only(tmp_path):
    made = kimi(tmp_path / "m")
    block = LAYOUTS["mxfp4-compressed-tensors"].quantization_config(K3_IGNORE, False)
    made.config["text_config"]["quantization_config"] = block
    report = made.check()
    assert report.ok and set(report.totals) == {"exclude-misses-plain"}
    hit = {str(f.place.module).rpartition(".")[2] for f in report.findings}
    assert hit == {
        "routed_expert_down_proj",
        "routed_expert_up_proj",
        "gate",
        "output_attn_res_proj",
        "self_attention_res_proj",
        "mlp_res_proj",
    }


KIMI_GLOBS = [
    "*self_attn*",
    "*shared_experts*",
    "*routed_expert_down_proj*",
    "*routed_expert_up_proj*",
    "*.mlp.gate_proj",
    "*.mlp.up_proj",
    "*.mlp.gate_up_proj",
    "*.mlp.down_proj",
    "*block_sparse_moe.gate",
    "*.mlp.gate",
    "*_res_proj",
    "*embed_tokens*",
    "*lm_head*",
    "*vision_tower*",
    "*mm_projector*",
]


def kimi_nvfp4(folder, patterns) -> Made:
    made = kimi(folder, "nvfp4-modelopt")
    made.config["quantization_config"] = LAYOUTS["nvfp4-modelopt"].quantization_config(patterns, False)
    return made


def test_kimi_k3_in_nvfp4_is_sound(tmp_path):
    assert not kimi_nvfp4(tmp_path / "m", KIMI_GLOBS).check().findings


def test_trailing_star_that_vllm_splits(tmp_path):
    globs = ["*routed_expert_*" if "routed_expert_down" in p else p for p in KIMI_GLOBS if "expert_up" not in p]
    made = kimi_nvfp4(tmp_path / "m", globs)
    assert {str(m).rpartition(".")[2] for m in modules(made, "exclude-misses-plain")} == {
        "routed_expert_down_proj",
        "routed_expert_up_proj",
    }


def test_experts_only_list_of_a_mixed_checkpoint(made):
    """MIXED_PRECISION opts modules in, so what no pattern hits is no fault."""
    banks = {f"model.layers.{n}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for n in (0, 1)}
    for block in (made.block, made.hf_quant["quantization"]):
        block.update(quant_algo="MIXED_PRECISION", quantized_layers=banks)
    made.exclude(["*lm_head*"])
    assert not made.check().findings


@pytest.mark.parametrize("input_scale", [True, False])
def test_deepseek_hybrid(tmp_path, input_scale):
    """vLLM's hybrid is W4A4 whatever the groups say, so it needs input scales."""
    made = Made(tmp_path / "m")
    for layer in range(2):
        made.plain(f"layers.{layer}.ffn.gate", shard=layer)
        for leaf in ("w1", "w2", "w3"):
            made.packed(f"layers.{layer}.ffn.experts.0.{leaf}", "nvfp4-modelopt", layer, input_scale=input_scale)
            made.packed(f"mtp.0.ffn.experts.{layer}.{leaf}", "mxfp4-deepseek", layer)
    made.config = {
        "model_type": "deepseek_v4",
        "quantization_config": {
            "quant_method": "fp8",
            "moe_quant_algo": "NVFP4",
            "quant_algo": "MIXED_PRECISION",
            "group_size": 16,
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16}, "input_activations": None}},
            "ignore": ["mtp.*", "*.ffn.gate"],
        },
    }
    assert summary(made) == (set() if input_scale else {("input-scale-missing", "error")})


def test_report_is_one_json_document(made):
    made.array("model.layers.0.mlp.experts.0.up_proj.weight_scale")[0, 0] = 0x7F
    report = made.check()
    document = json.loads(json.dumps(report.document()))
    assert document["schema"] == "truecast.check/1" and document["ok"] is False
    assert document["counts"]["matrices"] == 18 and document["counts"]["scales"] == 18 * 32
    assert document["findings"][0]["place"]["row"] == 0


# --- blocks made to harm


def findings_within(made: Made, seconds: float) -> list[tuple[str, str]]:
    started = time.monotonic()
    found = [(f.id, f.message) for f in made.check().findings]
    assert time.monotonic() - started < seconds
    return found


@pytest.mark.parametrize("pattern", ["re:([a-z.0-9_]+)+$X", "re:" + ".*" * 30 + "X", "re:" + "(.*|.*)" * 5 + "X"])
def test_regex_without_end(packed, pattern):
    packed.exclude([*REGEXES, pattern])
    [(rule, message)] = findings_within(packed, 10)
    assert rule == "exclude-invalid" and "takes too long" in message and repr(pattern) in message


def test_regex_without_end_of_sglang(made):
    made.exclude([*GLOBS, "([a-z0-9_]+.?)+X"])
    [(rule, message)] = findings_within(made, 10)
    assert rule == "exclude-invalid" and "takes too long" in message


def test_target_without_end(packed):
    packed.block["config_groups"]["group_0"]["targets"] = ["re:([a-z.0-9_]+)+$X"]
    [(rule, message)] = findings_within(packed, 10)
    assert rule == "exclude-invalid" and "takes too long" in message


def test_glob_of_many_stars(made):
    made.plain("a" * 60)
    made.exclude([*GLOBS, "a*", "*".join("a" * 25) + "*X", "*".join("e" * 30) + "**X"])
    found = findings_within(made, 4)
    assert (
        {"exclude-matches-nothing"}
        <= {rule for rule, _ in found}
        <= {"exclude-matches-nothing", "exclude-misses-plain"}
    )


def test_regexes_judged_apart_find_the_same(packed):
    packed.exclude([*REGEXES, r"re:model\.layers\.\d+\.mlp\.experts.*", "re:nothing.*"])
    here = [(f.id, f.place, f.severity) for f in packed.check().findings]
    packed.exclude(
        [*REGEXES, r"re:model\.layers\.(?=\d+)\d+\.mlp\.experts.*", "re:nothing.*", "re:.*(?<=lm)_head(a+)*"]
    )
    assert [(f.id, f.place, f.severity) for f in packed.check().findings] == here
    assert {rule for rule, _, _ in here} == {"exclude-hits-quantized", "exclude-matches-nothing"}


@pytest.mark.parametrize(
    "patterns", [["re:(?i).*LM_head"], ["re:(?P<a>m).*embed_tokens", "re:(?P<a>l)m_head"]], ids=["flag", "group"]
)
def test_regexes_that_cannot_be_joined(packed, patterns):
    packed.exclude([*REGEXES, *patterns])
    assert not packed.check().findings


@pytest.mark.parametrize(
    "pattern", ["re:a{99999999999999999999}", "re:a{" + "9" * 5000 + "}", "re:" + "(" * 3000 + ")" * 3000, "re:("]
)
def test_regex_that_does_not_compile(packed, pattern):
    packed.exclude([*REGEXES, pattern])
    assert [rule for rule, _ in findings_within(packed, 10)] == ["exclude-invalid"]
    packed.exclude(REGEXES)
    packed.block["config_groups"]["group_0"]["targets"] = ["Linear", pattern]
    assert [rule for rule, _ in findings_within(packed, 10)] == ["exclude-invalid"]


@pytest.mark.parametrize("targets", [5, "Linear", [5], {}])
def test_targets_that_are_no_list_of_names(packed, targets):
    packed.block["config_groups"]["group_0"]["targets"] = targets
    assert summary(packed) == {("config-method", "error")}


def test_values_of_another_type(made, packed):
    made.block["group_size"] = [16]
    made.hf_quant["quantization"]["group_size"] = [16]
    assert summary(made) == {("config-group-size", "error")}
    packed.block["format"] = ["x"]
    assert summary(packed) == {("config-method", "error")}
