"""Kernels of experts and attention by format, GPU, release and family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from examples.shaped import deepseek_v4, gpt_oss, kimi_k3
from tests.serve.launch.conftest import Launch, Released
from truecast.checkpoint.source import open_checkpoint
from truecast.errors import UsageError
from truecast.serve.launch.plan import LaunchPlan, plan_launch
from truecast.serve.stored_model import StoredModel, stored_model
from truecast.serve.topology import read_topology

BACKEND = "--moe-runner-backend"


def values(plan: LaunchPlan) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in plan.arguments}


def shaped(make: Callable[..., object], folder: Path) -> StoredModel:
    make(folder)
    return stored_model(open_checkpoint(folder))


@pytest.mark.parametrize(
    ("form", "topology", "backend"),
    [
        ("mxfp4", "h200:2x8", "marlin"),
        ("mxfp4", "h100:4x8", "marlin"),
        ("mxfp4", "b300:1x8", "flashinfer_mxfp4"),
        ("mxfp4", "b200:2x8", "flashinfer_mxfp4"),
        ("nvfp4", "h200:2x8", "marlin"),
        ("nvfp4_inputs", "h200:2x8", "marlin"),
        ("nvfp4", "b300:1x8", "marlin"),
        ("nvfp4_inputs", "b300:1x8", "flashinfer_trtllm"),
        ("w4afp8", "h200:2x8", None),
    ],
)
def test_experts(launch: Launch, form: str, topology: str, backend: str | None) -> None:
    assert values(launch(form, topology)).get(BACKEND) == backend


def test_no_kernel_on_this_gpu(launch: Launch) -> None:
    with pytest.raises(UsageError, match=r"no W4AFP8 kernel for B200.*; serve its MXFP4 or NVFP4 form"):
        launch("w4afp8", "b200:2x8")


@pytest.mark.parametrize("form", ["nvfp4", "w4afp8"])
def test_a_dialect_whose_experts_sglang_drops(released: Released, form: str) -> None:
    model = replace(getattr(released, form), dialect="compressed-tensors")
    with pytest.raises(UsageError, match="without an error; truecast convert --to"):
        plan_launch(model, read_topology("h200:2x8"))


def test_attention_is_named_on_hopper_and_left_to_sglang_on_blackwell(launch: Launch) -> None:
    hopper, blackwell = values(launch("mxfp4", "h200:2x8")), values(launch("mxfp4", "b200:2x8"))
    assert hopper["--prefill-attention-backend"] == hopper["--decode-attention-backend"] == "flashmla"
    assert (hopper["--kv-cache-dtype"], hopper["--mamba-ssm-dtype"]) == ("fp8_e4m3", "float32")
    assert not [name for name in blackwell if "attention" in name or "dtype" in name]


def test_another_shape_of_mla_than_flashmla_has(tmp_path: Path) -> None:
    plan = plan_launch(shaped(kimi_k3.make, tmp_path / "K3"), read_topology("h200:1x1"))
    assert values(plan)["--decode-attention-backend"] == "triton"
    assert values(plan)["--served-model-name"] == "K3"


def test_aarch64_wheels_without_sm90a_are_told(launch: Launch) -> None:
    assert any("no sm_90a code" in note for note in launch("w4afp8", "gh200:8x4").notes)
    assert not any("sm_90a" in note for note in launch("w4afp8", "h200:2x8").notes)


@pytest.mark.parametrize(
    ("make", "reasoning", "tools"),
    [(gpt_oss.make, "gpt-oss", "gpt-oss"), (deepseek_v4.make, "deepseek-v4", "deepseekv4")],
)
@pytest.mark.parametrize("topology", ["h200:1x1", "h200:1x2", "b200:1x2"])
def test_other_families_leave_kernels_and_memory_to_sglang(
    make: Callable[..., object], reasoning: str, tools: str, topology: str, tmp_path: Path
) -> None:
    found = values(plan_launch(shaped(make, tmp_path / "model"), read_topology(topology)))
    assert (found["--reasoning-parser"], found["--tool-call-parser"]) == (reasoning, tools)
    expected = {"--model-path", "--served-model-name", "--tp-size", "--reasoning-parser", "--tool-call-parser"}
    assert found.keys() - {"--ep-size"} == expected | {"--host", "--port"}


def test_a_dense_model(tmp_path: Path, write_checkpoint: Callable[..., Path]) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 36, "num_attention_heads": 9,
        "num_key_value_heads": 3, "num_hidden_layers": 2,
    }  # fmt: skip
    tensors = {"model.layers.0.self_attn.q_proj.weight": ("BF16", (36, 36), bytes(36 * 36 * 2))}
    folder = write_checkpoint(tmp_path / "llama", {"model.safetensors": tensors}, config)
    model = stored_model(open_checkpoint(folder))
    assert values(plan_launch(model, read_topology("h200:1x3"))) == {
        "--model-path": str(folder), "--served-model-name": "llama", "--tp-size": "3", "--host": "0.0.0.0",
        "--port": "30000",
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"do not divide over 8 GPUs; legal numbers.*--replicas"):
        plan_launch(model, read_topology("h200:1x8"))
    assert plan_launch(model, read_topology("h200:1x8"), replicas=8).tp == 1


def test_mxfp4_on_blackwell_before_situ_was_in_flashinfer(launch: Launch) -> None:
    """0.5.17's own argument check stops without SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL."""
    plan = launch("mxfp4", "b200:2x8", version="0.5.17")
    assert {s.name: s.value for s in plan.arguments}["--moe-runner-backend"] == "marlin"
    assert any("SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL" in note for note in plan.notes)


def test_input_scales_count_where_they_are_stored(released: Released) -> None:
    """A config that only promises them leaves FP4 kernels dividing by what happens to be in memory."""
    promised = replace(released.nvfp4_inputs, with_input_scale=0)
    plan = plan_launch(promised, read_topology("b200:2x8"))
    assert {s.name: s.value for s in plan.arguments}["--moe-runner-backend"] == "marlin"
    none = plan_launch(replace(released.w4afp8, with_input_scale=0), read_topology("gh200:8x4"))
    assert any("have no input_scale" in note for note in none.notes)
    assert not any(
        "have no input_scale" in note for note in plan_launch(released.w4afp8, read_topology("gh200:8x4")).notes
    )
