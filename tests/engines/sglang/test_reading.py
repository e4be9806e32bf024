"""The situation: read from a runner, and every name that is read stands in each release."""

from __future__ import annotations

import ast
import contextlib
import glob
import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.conftest import Release
from tests.engines.sglang.conftest import Place
from truecast.engines.sglang import reading
from truecast.engines.sglang.nvfp4 import modelopt_on_marlin, on_marlin
from truecast.engines.sglang.situation import EXPERT_COUNTS, Situation
from truecast.engines.sglang.source import function, installed

LEAVES = {
    "exec.moe": {"enable_eplb", "ep_num_redundant_experts", "init_expert_location"},
    "exec.kernel": {"attention_backend", "prefill_attention_backend", "decode_attention_backend"},
    "model": {"kv_cache_dtype"},
    "schedule": {"page_size"},
}


def leaves(release: Release) -> dict[str, set[str]]:
    """Names of SGLang's arguments by namespace: annotated fields in 0.5.17, a class for each namespace later."""
    found: dict[str, set[str]] = {}
    if "NS(" in (text := release.sources("sglang.srt.server_args")):
        (arguments,) = [n for n in ast.parse(text).body if getattr(n, "name", None) == "ServerArgs"]
        for node in ast.walk(arguments):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                for call in ast.walk(node.annotation):
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "NS":
                        found.setdefault(ast.literal_eval(call.args[0]), set()).add(node.target.id)
        return found
    folder = "sglang/srt/arg_groups/fields/"
    for name in release.wheel.namelist():
        if name.startswith(folder) and name.endswith(".py"):
            for group in ast.parse(release.wheel.read(name).decode()).body:
                names: dict[str, Any] = {}
                for node in getattr(group, "body", []):
                    if isinstance(node, ast.AnnAssign | ast.Assign):
                        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                        names[ast.unparse(target)] = node.value
                if "_NS_PATH" in names:
                    found[ast.literal_eval(names["_NS_PATH"])] = set(names)
    return found


def test_what_is_read_stands_in_each_release(release: Release) -> None:
    published = leaves(release)
    for namespace, names in LEAVES.items():
        assert names <= published[namespace], f"{namespace} lacks {names - published[namespace]}"
    context = "sglang.srt.runtime_context"
    for name in ("get_exec", "get_model", "get_parallel", "get_schedule"):
        function(release.sources, context, name)
    places = function(release.sources, context, "ParallelContext") + str(published["parallel"])
    for name in ("tp_rank", "tp_size", "moe_ep_rank", "moe_ep_size"):
        assert name in places
    function(release.sources, "sglang.srt.layers.moe.utils", "get_moe_runner_backend")
    function(release.sources, "sglang.srt.layers.quantization.fp4_utils", "get_fp4_gemm_runner_backend")
    begin = function(release.sources, "sglang.srt.model_executor.model_runner", "ModelRunner.__init__")
    for name in ("model_config", "device", "gpu_id", "is_draft_worker"):
        assert f"self.{name} = " in begin
    config = function(release.sources, "sglang.srt.configs.model_config", "ModelConfig.__init__")
    for name in ("model_path", "quantization", "hf_config", "hf_text_config"):
        assert f"self.{name} = " in config


@pytest.fixture
def runner(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    moe = SimpleNamespace(enable_eplb=False, ep_num_redundant_experts=0, init_expert_location="trivial")
    kernel = SimpleNamespace(
        attention_backend="fa3", prefill_attention_backend=None, decode_attention_backend="flashmla"
    )
    parallel = SimpleNamespace(tp_rank=5, tp_size=8, moe_ep_rank=2, moe_ep_size=4)
    place("sglang", {"__path__": []})
    place(
        "sglang.srt.runtime_context",
        {
            "get_exec": lambda: SimpleNamespace(moe=moe, kernel=kernel),
            "get_model": lambda: SimpleNamespace(kv_cache_dtype="fp8_e4m3"),
            "get_schedule": lambda: SimpleNamespace(page_size=64),
            "get_parallel": lambda: parallel,
        },
    )
    place("sglang.srt.layers.moe.utils", {"get_moe_runner_backend": lambda: SimpleNamespace(value="marlin")})
    place(
        "sglang.srt.layers.quantization.fp4_utils",
        {"get_fp4_gemm_runner_backend": lambda: SimpleNamespace(value="marlin")},
    )
    monkeypatch.setattr(reading, "version", lambda: "0.5.20")
    text = SimpleNamespace(to_dict=lambda: {"hidden_act": "situ", "num_experts": 16})
    whole = SimpleNamespace(quantization_config={"quant_algo": "NVFP4"})
    model = SimpleNamespace(model_path=tmp_path, quantization="modelopt_fp4", hf_config=whole, hf_text_config=text)
    return SimpleNamespace(model_config=model, device="cpu", gpu_id=0, is_draft_worker=True, moe=moe)


def test_a_runner_is_read(runner: SimpleNamespace, tmp_path: Path) -> None:
    got = reading.situation(runner)
    assert got == Situation(
        version="0.5.20",
        model=str(tmp_path),
        quantization="modelopt_fp4",
        config={"hidden_act": "situ", "num_experts": 16},
        quantization_config={"quant_algo": "NVFP4"},
        moe_backend="marlin",
        linear_backend="marlin",
        prefill_attention="fa3",
        decode_attention="flashmla",
        kv_cache_dtype="fp8_e4m3",
        page_size=64,
        tp_rank=5,
        tp_size=8,
        ep_rank=2,
        ep_size=4,
        is_draft=True,
    )


@pytest.mark.parametrize(
    "name, value", [("enable_eplb", True), ("ep_num_redundant_experts", 2), ("init_expert_location", "/a/map.json")]
)
def test_experts_that_move(runner: SimpleNamespace, name: str, value: object) -> None:
    setattr(runner.moe, name, value)
    assert not reading.situation(runner).expert_places_fixed


BLOCKS: list[dict[str, Any] | None] = [None, {}, {"quant_method": "a"}, {"quant_method": "b", "quantized_layers": {}},
    {"quant_method": "c", "quantized_layers": {}, "kv_cache_scheme": None}]  # fmt: skip


@pytest.mark.parametrize("method", ["modelopt_fp4", "modelopt_mixed"])
def test_the_quantization_block_is_the_one_that_the_release_reads(
    release: Release, runner: SimpleNamespace, tmp_path: Path, method: str
) -> None:
    """Every combination of the four places, against ``get_quant_config`` of the release itself."""
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    found: list[Any] = []

    class Method:
        @staticmethod
        def from_config(block: Any) -> None:
            found.append({key: value for key, value in block.items() if key not in ("hf_config", PACKED)})

        @staticmethod
        def get_config_filenames() -> list[str]:
            return ["hf_quant_config.json"]

    scope = released_reader(release, Method)
    runner.model_config.quantization = method
    for whole, text, other in map(deepcopy, product(BLOCKS, repeat=3)):  # the release writes into them
        config = PretrainedConfig(
            quantization_config=whole, compression_config=other, text_config=PretrainedConfig(quantization_config=text)
        )
        runner.model_config.hf_config = config
        read = dict(reading.situation(runner).quantization_config)
        scope["get_quant_config"](runner.model_config, None, {})
        assert read == found.pop()


PACKED = "packed_modules_mapping"


class PretrainedConfig(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return {key: getattr(value, "to_dict", lambda v=value: v)() for key, value in vars(self).items()}


def released_reader(release: Release, method: type) -> dict[str, Any]:
    """``get_quant_config`` of a release, with ``method`` for whatever method the checkpoint names."""
    scope: dict[str, Any] = {
        "os": os, "glob": glob, "json": json, "Mapping": Mapping, "PretrainedConfig": PretrainedConfig,
        "deepcopy": deepcopy, "CheckpointQuantSpec": SimpleNamespace, "REQUANTIZATION_METHODS": (),
        "get_quantization_config": lambda name: method, "ModelOptFp4Config": method, "ModelOptFp8Config": method,
        "_quark_draft_online_quant_config": lambda *_: None, "_resolve_explicit_draft_quant_config": lambda _, made: made,
        "_modelopt_quant_section": lambda block: block.get("quantization", block),
    }  # fmt: skip
    spec = "sglang.srt.model_loader.checkpoint_quantization"
    with contextlib.suppress(LookupError):  # 0.5.17 has none
        names = {n.name for n in ast.parse(release.sources(spec)).body if isinstance(n, ast.FunctionDef)}
        release.cut(spec, names, scope)
    return release.cut("sglang.srt.model_loader.weight_utils", {"get_quant_config"}, scope)


@pytest.mark.parametrize(
    "config, count",
    [
        ({"num_experts": 8}, 8), ({"n_routed_experts": 9}, 9), ({"num_local_experts": 10}, 10),
        ({"moe_num_experts": 64}, 64), ({"moe_num_experts": [64, 32]}, 64), ({"num_experts": None}, 0), ({}, 0),
    ],
)  # fmt: skip
def test_how_many_experts(config: dict[str, Any], count: int) -> None:
    assert Situation("0.5.17", "m", config=config).experts == count


def test_every_name_under_which_a_model_reads_its_experts_is_known(release: Release) -> None:
    names = set()
    for path in release.wheel.namelist():
        if path.startswith("sglang/srt/models/") and path.endswith(".py"):
            text = release.wheel.read(path).decode()
            names |= set(re.findall(r"num_(?:logical_)?experts=[a-z_.]*config\.([a-z_]+)", text))
    assert names - {"max_n_routed_experts"} == set(EXPERT_COUNTS)  # Ling's reading of n_routed_experts


def test_nvfp4_is_on_marlin_where_asked_for_or_below_blackwell() -> None:
    def here(**changes: Any) -> bool:
        given = {"quantization": "modelopt_fp4", "config": {"num_experts": 8}, **changes}
        return modelopt_on_marlin(Situation(version="0.5.17", model="m", **given))

    assert here(moe_backend="marlin") and here(capability=(9, 0)) and here(capability=(8, 0))
    assert not here() and not here(capability=(10, 0)) and not here(capability=(7, 5))
    assert not here(moe_backend="flashinfer_trtllm", capability=(9, 0))
    assert not here(moe_backend="marlin", quantization="mxfp4") and not here(moe_backend="marlin", config={})


NVFP4_GROUPS = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}
NOT_NVFP4: list[dict[str, Any]] = [
    {},
    {
        "format": "mxfp4-pack-quantized",
        "config_groups": {"a": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}},
    },
    {"config_groups": {"a": {"weights": {"num_bits": 4, "type": "int", "group_size": 16}}}},
    {"config_groups": {"a": {"weights": None}, "b": None}},
    {"config_groups": [1]},
]


def test_which_nvfp4_may_come_to_marlin() -> None:
    def here(method: str, block: dict[str, Any] | None = None, **changes: Any) -> bool:
        return on_marlin(Situation("0.5.17", "m", method, quantization_config=block or {}, **changes))

    for method, block in (
        ("modelopt_fp4", None), ("modelopt_mixed", None), ("minimax_m3_nvfp4", None),
        ("compressed-tensors", {"format": "nvfp4-pack-quantized"}), ("compressed-tensors", NVFP4_GROUPS),
    ):  # fmt: skip
        assert here(method, block, capability=(9, 0)) and here(method, block, capability=(8, 0))
        assert here(method, block, capability=(10, 0), linear_backend="marlin")  # dense layers, without any expert
        assert here(method, block, capability=(10, 0), moe_backend="marlin")
        assert not here(method, block, capability=(10, 0)) and not here(method, block)
    assert here("modelopt_fp4", {"quant_algo": "W4A16_NVFP4"}, capability=(10, 0))
    for block in NOT_NVFP4:
        assert not here("compressed-tensors", block, capability=(9, 0), moe_backend="marlin")
    assert not here("fp8", capability=(9, 0)) and not on_marlin(Situation("0.5.17", "m", capability=(9, 0)))


def test_source_text_is_read_without_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "apackage" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "apackage" / "__init__.py").write_text("raise SystemExit('imported')")
    (inner / "__init__.py").write_text("here = 1\n")
    (inner / "leaf.py").write_text("class Class:\n    @property\n    def method(self):\n        return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sources = installed("apackage")
    assert sources("apackage.inner") == "here = 1\n"
    assert function(sources, "apackage.inner.leaf", "Class.method") == "def method(self):\n    return 1"
    for module, name in (
        ("apackage.none", "x"),
        ("apackage.inner.leaf", "Class.none"),
        ("apackage.inner.leaf", "none"),
    ):
        with pytest.raises(LookupError):
            function(sources, module, name)
    with pytest.raises(LookupError):
        installed("no_such_package_here")("no_such_package_here.module")
