"""W4AFP8's config and loading, over SGLang's own classes: what a checkpoint says, and what it did not fill."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.shaped import kimi_k3
from tests.engines.conftest import Release, constant
from tests.engines.sglang import w4afp8_engine as engine
from tests.engines.test_sglang_exclude import runtime_modules
from tests.engines.w4afp8_checkpoint import SHAPE
from truecast.convert import Target, convert
from truecast.engines.sglang.fixes.w4afp8_config import FIX
from truecast.engines.sglang.ignore_list import IgnoreList, listed
from truecast.engines.sglang.loaded_experts import LoadedExperts
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.start import State, decide, demand
from truecast.errors import RefusedError

MODULE = "sglang.srt.layers.quantization.w4afp8"
BLOCK = {"quant_method": "w4afp8", "ignored_layers": ["model.layers.0.mlp.gate_up_proj"]}
BANK = "model.layers.1.mlp.experts"
SITUATION = Situation("0.5.17", "k3", "w4afp8", {}, BLOCK)


@pytest.fixture
def runtime(release: Release, hook_registry: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return engine.install(release, monkeypatch)


@pytest.fixture
def hooked(runtime: Any, hook_registry: Any) -> Any:
    engine.apply(hook_registry, FIX.hooks(SITUATION))
    return runtime


# --- when


def test_who_needs_it() -> None:
    def required(block: dict[str, Any]) -> bool:
        need = FIX.need(Situation("0.5.17", "k3", "w4afp8", {}, block))
        assert need is not None
        return need.required

    assert required(BLOCK) and required({"exclude_modules": ["lm_head"]})
    assert required({"moe_activation_scheme": "dynamic"})
    assert not required({}) and not required({"ignored_layers": [], "moe_activation_scheme": "static"})
    assert FIX.need(Situation("0.5.17", "k3", "compressed-tensors", {}, BLOCK)) is None


def test_a_list_in_the_other_file_alone_stops_the_server(hook_registry: Any) -> None:
    """Each release takes the name of the method from there, makes a config without arguments, and drops the list."""
    block = {"quantization": {"quant_algo": "MIXED_PRECISION", "exclude_modules": ["lm_head"]}}
    situation = Situation("0.5.17", "k3", "w4afp8", {}, block)
    (outcome,) = decide([dataclasses.replace(FIX, faulty=lambda sources: True)], {FIX.name}, situation, None)
    assert outcome.state is State.UNAVAILABLE
    with pytest.raises(RefusedError, match=r"hf_quant_config\.json, .*write it into quantization_config"):
        demand(situation, [outcome])
    block["quantization"]["exclude_modules"] = []
    assert not FIX.need(situation).required  # type: ignore[union-attr]


def test_each_release_reads_no_other_file_for_w4afp8(release: Release) -> None:
    assert release.cut(MODULE, {"get_config_filenames"}, {})["get_config_filenames"](None) == []


def test_the_fault_is_recognised(release: Release) -> None:
    assert FIX.faulty(release.sources)
    reads = 'cls.get_from_keys_or(config, ["ignored_layers"], []); config.get("moe_activation_scheme"); return cls('
    assert not FIX.faulty(release.edited(MODULE, "return cls(", reads).sources)
    gone = ("class W4AFp8Config", "def from_config", "def process_weights_after_loading", "        ignored_layers: Opt")
    for old in gone:
        with pytest.raises(LookupError, match="w4afp8"):
            FIX.faulty(
                release.edited(MODULE, old, old.replace(" ", " other_", 1) if old in gone[:3] else "x: Opt").sources
            )
    with pytest.raises(LookupError, match="_weight_loader_impl"):
        layer = "sglang.srt.layers.moe.fused_moe_triton.layer"
        FIX.faulty(release.edited(layer, "def _weight_loader_impl", "def other").sources)


# --- the config


def kind(runtime: Any, config: Any, name: str) -> str:
    layer = runtime.ReplicatedLinear(256, 256, bias=False, quant_config=config, prefix=name)
    return type(layer.quant_method).__name__


def test_stock_drops_the_list_and_the_fix_reads_it(runtime: Any, hook_registry: Any) -> None:
    ignored, other = "model.layers.0.mlp.gate_up_proj", "model.layers.1.mlp.gate_up_proj"
    stock = runtime.W4AFp8Config.from_config(BLOCK)
    assert kind(runtime, stock, ignored) == kind(runtime, stock, other) == "Fp8LinearMethod"
    engine.apply(hook_registry, FIX.hooks(SITUATION))
    config = runtime.W4AFp8Config.from_config(BLOCK)
    assert type(config) is runtime.W4AFp8Config
    assert kind(runtime, config, ignored) == "UnquantizedLinearMethod"
    assert kind(runtime, config, other) == "Fp8LinearMethod"
    FIX.selftest(SITUATION)


def test_selftest_notices_that_nothing_was_hooked(runtime: Any) -> None:
    with pytest.raises(AssertionError, match="dropped entries"):
        FIX.selftest(SITUATION)


def test_an_ignored_bank_is_unquantized(hooked: Any) -> None:
    config = hooked.W4AFp8Config.from_config({**BLOCK, "ignore": ["re:.*layers\\.1\\.mlp\\.experts.*"]})
    bank = engine.bank(hooked, hooked.W4AFp8Config.from_config(BLOCK))
    assert type(config.get_quant_method(bank, BANK.replace("1", "2"))).__name__ == "W4AFp8MoEMethod"
    assert config.get_quant_method(bank, BANK) is None


def test_names_are_followed_through_the_model_s_own_renaming(hooked: Any) -> None:
    config = hooked.W4AFp8Config.from_config({**BLOCK, "ignored_layers": ["tower.block.0.o_proj"]})
    rename = SimpleNamespace(apply_list=lambda names: [n.replace("tower.block", "model.layers") for n in names])
    config.apply_weight_name_mapper(rename)
    assert kind(hooked, config, "model.layers.0.o_proj") == "UnquantizedLinearMethod"
    assert kind(hooked, config, "tower.block.0.o_proj") == "UnquantizedLinearMethod"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"moe_activation_scheme": "token"}, "must be static or dynamic"),
        ({"group_size": 64}, "group_size is 64"),
        ({"weight_block_size": [64, 64]}, "weight_block_size"),
        ({"linear_activation_scheme": "static"}, "linear_activation_scheme"),
        ({"ignored_layers": "lm_head"}, "no list of module names"),
        ({"ignore": ["re:(("]}, "no regular expression"),
    ],
)
def test_what_the_kernels_do_not_have_is_refused(hooked: Any, block: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(hooked, hooked.W4AFp8Config.from_config({"quant_method": "w4afp8", **block}), "model.a")


def test_a_linear_layer_without_scales_is_refused(hooked: Any) -> None:
    config = hooked.W4AFp8Config.from_config(BLOCK)
    layer = hooked.ReplicatedLinear(256, 256, bias=False, quant_config=config, prefix="model.layers.1.o_proj")
    with pytest.raises(ValueError, match=r"model\.layers\.1\.o_proj\.weight_scale_inv.*ignored_layers"):
        layer.quant_method.process_weights_after_loading(layer)


# --- loading


def tensors(experts: int = 4, **left_out: set[int]) -> Iterator[tuple[str, str, int, torch.Tensor]]:
    """(parameter, shard, expert, value) of a whole bank, as a checkpoint has them. No two scales of a side are equal."""
    rng = torch.Generator().manual_seed(2)
    for expert in range(experts):
        for side, shard, rows, cols in (("w13", "w1", 128, 256), ("w13", "w3", 128, 256), ("w2", "w2", 256, 128)):
            made = {
                "weight": torch.randint(-128, 128, (rows, cols // 2), dtype=torch.int8, generator=rng),
                "weight_scale_inv": torch.rand(rows, cols // 128, generator=rng) + 0.1,
                "input_scale": torch.tensor(0.1 + 0.01 * expert + (side == "w2")),
            }
            for part, value in made.items():
                if expert not in left_out.get(part, ()):
                    yield f"{side}_{part}", shard, expert, value


def load(bank: Any, given: Any) -> None:
    parameters = dict(bank.named_parameters())
    for name, shard, expert, value in given:
        parameters[name].weight_loader(
            parameters[name], value, f"{BANK}.{name}", shard_id=shard, expert_id=expert
        )  # fmt: skip
    bank.quant_method.process_weights_after_loading(bank)


def made(runtime: Any, **block: Any) -> Any:
    return engine.bank(runtime, runtime.W4AFp8Config.from_config({**BLOCK, **block}))


def test_static_scale_is_that_of_all_ranks_experts(runtime: Any, hook_registry: Any) -> None:
    def scales(ranks: int) -> list[float]:
        found = []
        for rank in range(ranks):
            runtime.on_rank(rank, ranks, 1)
            bank = made(runtime)
            # stock takes no scale that BF16 does not hold
            given = ((n, s, e, v.bfloat16().float() if "input" in n else v) for n, s, e, v in tensors())
            load(bank, given)
            found.append(bank.w13_input_scale.item())
        return found

    whole = scales(1)
    assert scales(2)[0] != whole[0]  # the fault: rank 0 does not hold the expert with the largest
    engine.apply(hook_registry, FIX.hooks(SITUATION))
    assert scales(1) == whole and scales(2) == whole * 2 and scales(4) == whole * 4


def test_a_reader_that_drops_other_ranks_scales_is_told_of(hooked: Any, caplog: pytest.LogCaptureFixture) -> None:
    hooked.on_rank(0, 2, 1)
    load(made(hooked), tensors())
    assert "activation scales" not in caplog.text
    load(made(hooked), (t for t in tensors() if t[2] < 2))
    assert "activation scales of 2 experts of 4" in caplog.text


def test_scales_that_bf16_does_not_hold(runtime: Any, hook_registry: Any) -> None:
    def given() -> Any:
        return ((n, s, e, v.reshape(1) if "input" in n else v) for n, s, e, v in tensors())

    with pytest.raises(ValueError, match="must be equal"):  # it compares a twin with the other one's rounding
        load(made(runtime), given())
    engine.apply(hook_registry, FIX.hooks(SITUATION))
    bank = made(runtime)
    load(bank, given())
    assert bank.w13_input_scale.tolist() == [torch.tensor(0.13).item()]
    assert bank.w2_input_scale.tolist() == [torch.tensor(1.13).item()]


def test_what_was_loaded_is_what_stock_loads(runtime: Any, hook_registry: Any) -> None:
    stock = made(runtime)
    load(stock, (t for t in tensors() if "input" not in t[0]))
    engine.apply(hook_registry, FIX.hooks(SITUATION))
    bank = made(runtime)
    load(bank, tensors())
    for name, value in bank.named_parameters():
        if "input" not in name:
            assert torch.equal(value, dict(stock.named_parameters())[name]), name
    assert "_weight_loader_impl" not in vars(bank) and "truecast_loaded" not in vars(bank.quant_method)


def test_missing_activation_scales(runtime: Any, hook_registry: Any) -> None:
    stock = made(runtime)
    load(stock, tensors(input_scale={0, 1, 2, 3}))
    assert stock.w13_input_scale.item() == 1  # the fault
    engine.apply(hook_registry, FIX.hooks(SITUATION))
    with pytest.raises(ValueError, match=rf"did not fill {BANK}\.2\.w1\.input_scale, .*2\.w2.*moe_activation_scheme"):
        load(made(runtime), tensors(input_scale={2}))
    bank = made(runtime, moe_activation_scheme="dynamic")
    load(bank, tensors(input_scale={0, 1, 2, 3}))
    assert bank.w13_input_scale is None and bank.w2_input_scale is None


@pytest.mark.parametrize("part", ["weight", "weight_scale_inv"])
def test_missing_weights(runtime: Any, hook_registry: Any, part: str) -> None:
    load(made(runtime), (t for t in tensors(**{part: {3}}) if "input" not in t[0]))  # the fault: nothing is said
    engine.apply(hook_registry, FIX.hooks(SITUATION))
    runtime.on_rank(1, 2, 1)  # experts 2 and 3
    with pytest.raises(
        ValueError, match=rf"did not fill {BANK}\.3\.w1\.{part}, {BANK}\.3\.w3\.{part}, .*names them other"
    ):
        load(made(runtime), tensors(**{part: {3}}))
    runtime.on_rank(0, 2, 1)
    load(made(runtime), tensors(**{part: {3}}))


def test_a_bank_that_was_given_nothing(hooked: Any) -> None:
    with pytest.raises(ValueError, match=r"w3\.weight_scale_inv|w1\.weight.* more"):
        load(made(hooked), [])
    hooked.scope["load_format"] = "dummy"
    load(made(hooked), [])


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none(hooked: Any, value: float) -> None:
    given = ((n, s, e, torch.tensor(value) if (n, e) == ("w2_input_scale", 1) else v) for n, s, e, v in tensors())
    with pytest.raises(ValueError, match=rf"{BANK}\.1\.w2\.input_scale is"):
        load(made(hooked), given)


def test_dynamic_scales_are_refused_with_deepep(hooked: Any) -> None:
    hooked.scope["a2a"] = "deepep"
    with pytest.raises(ValueError, match="DeepEP"):
        made(hooked, moe_activation_scheme="dynamic")
    made(hooked)


def test_experts_that_may_lie_anywhere_are_named_by_row() -> None:
    loaded = LoadedExperts(BANK, 1, None)
    assert next(iter(loaded.unfilled(True))) == f"{BANK}.<row 0 here>.w1.weight"


# --- ignore lists


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """config.json of Kimi-K3 in W4AFP8, with its BF16 attention kept."""
    folder = tmp_path_factory.mktemp("k3")
    kimi_k3.make(folder / "source", shape=SHAPE)
    found = {}
    for name, target in {
        "w4afp8": Target("w4afp8"),
        "modelopt": Target("nvfp4", "modelopt"),
        "compressed-tensors": Target("nvfp4", "compressed-tensors"),
    }.items():
        convert(folder / "source", folder / name, target)
        found[name] = json.loads(Path(folder / name / "config.json").read_text())
    return found


def packed(release: Release) -> dict[str, list[str]]:
    """What Kimi-K3 declares of its fused modules: nothing yet in 0.5.17."""
    if release.version == "0.5.17":
        return {}
    return dict(constant(release.wheel, "sglang/srt/models/kimi_k3.py", "packed_modules_mapping"))


@pytest.mark.parametrize("dialect", ["modelopt", "compressed-tensors"])
def test_lists_that_truecast_writes(release: Release, outputs: dict[str, dict[str, Any]], dialect: str) -> None:
    """Globs and patterns: every plain module, under SGLang's own fused names too, and no expert."""
    config = outputs[dialect]
    ignored = IgnoreList(listed(config["quantization_config"]), packed(release))
    plain, banks = runtime_modules(config)
    for module in plain:
        assert ignored.names(module) and ignored.names(f"language_model.{module}"), module
    for bank in banks:
        assert not ignored.names_experts(bank), bank


def test_the_list_of_w4afp8_itself(release: Release, outputs: dict[str, dict[str, Any]]) -> None:
    """Full names; what is not FP8 by then is named, and nothing of the experts."""
    config = outputs["w4afp8"]
    ignored = IgnoreList(listed(config["quantization_config"]), packed(release))
    plain, banks = runtime_modules(config)
    unnamed = {module.rpartition(".")[2] for module in plain if not ignored.names(module)}
    assert unnamed <= {"fused_qkvg_proj", "qkv_proj", "g_proj", "o_proj"}
    assert not any(ignored.names_experts(bank) for bank in banks)


def test_one_matrix_of_two_kinds_is_refused() -> None:
    ignored = IgnoreList(["a.mlp.gate_proj"], {})
    with pytest.raises(ValueError, match="names its gate_proj but not its up_proj"):
        ignored.names("a.mlp.gate_up_proj")
    assert IgnoreList(["a.mlp.gate_proj", "a.mlp.up_proj"], {}).names("a.mlp.gate_up_proj")
    assert IgnoreList(["a.q", "a.k"], {"qk": ["q", "k"]}).names("a.qk")
    kda = [f"*.self_attn.{leaf}_proj" for leaf in "qkvg"]
    assert IgnoreList(kda, {}).names("model.layers.0.self_attn.fused_qkvg_proj")


@pytest.mark.parametrize(
    ("entry", "module", "hit"),
    [
        ("mlp.gate", "model.layers.1.mlp.gate", True),
        ("mlp.gate", "model.layers.1.mlp.gate_up_proj", False),
        ("model.layers.1", "model.layers.10.o_proj", False),
        ("model.layers.1.", "model.layers.1.o_proj", True),
        ("language_model.model.layers.1.o_proj", "model.layers.1.o_proj", True),
        ("*.o_proj", "model.layers.1.o_proj", True),
        ("*o_proj", "model.layers.1.kv_o_proj.x", True),
        ("model.layers.[12].o_proj", "model.layers.3.o_proj", False),
        ("re:.*o_proj$", "model.layers.1.o_proj", True),
        ("re:o_proj", "model.layers.1.o_proj", False),
        ("re:language_model\\..*o_proj", "model.layers.1.o_proj", True),
    ],
)
def test_forms_of_an_entry(entry: str, module: str, hit: bool) -> None:
    assert IgnoreList([entry], {}).names(module) is hit


names = st.lists(st.sampled_from(["a", "b", "layers", "1", "10", "o_proj"]), min_size=1, max_size=5).map(".".join)


@cache
def stock_match() -> Any:
    scope: dict[str, Any] = {}
    return Release.of("0.5.20").cut("sglang.srt.layers.quantization.utils", {"_module_path_match"}, scope)


@given(names, names)
def test_plain_names_match_as_sglang_matches_them(entry: str, module: str) -> None:
    assert IgnoreList([entry], {}).names(module) == stock_match()["_module_path_match"](entry, module)
