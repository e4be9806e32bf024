"""What a deployment has to know of a checkpoint, from headers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from examples.shaped import kimi_k3
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.errors import InputError, TruecastError
from truecast.serve.launch.plan import plan_launch
from truecast.serve.stored_model import StoredModel, stored_model
from truecast.serve.topology import read_topology


def test_kimi_k3_in_full(k3: StoredModel) -> None:
    assert (k3.family, k3.format, k3.dialect) == ("kimi_k3", "mxfp4", "compressed-tensors")
    assert k3.architecture == "KimiK3ForConditionalGeneration"
    assert (k3.layers, k3.heads, k3.experts, k3.experts_per_token) == (93, 96, 896, 16)
    assert k3.activation == "situ" and not k3.problems and k3.remote_code
    assert (k3.packed, k3.with_input_scale) == (92 * 896 * 3, 0)
    assert k3.weights.experts == 92 * 896 * 3 * 3584 * 3072 * 17 // 32  # 4.25 bits a weight


def test_what_a_request_of_kimi_k3_keeps(k3: StoredModel) -> None:
    assert k3.request is not None
    assert k3.request.kv_elements == 24 * 576 and not k3.request.kv_divided
    assert k3.request.state_elements == 69 * 96 * 128 * 128
    assert k3.request.convolution_elements == 69 * 96 * 128 * 3 * 3


def test_stored_activation_scales_are_counted(tmp_path: Path) -> None:
    kimi_k3.make(tmp_path / "mxfp4", shape=kimi_k3.K3Shape(layers=2, expert_width=128))
    convert(tmp_path / "mxfp4", tmp_path / "w4afp8", Target("w4afp8"))
    model = stored_model(open_checkpoint(tmp_path / "w4afp8"))
    assert model.format == "w4afp8" and model.packed == model.with_input_scale == 1 * 8 * 3


def changed(folder: Path, **text: object) -> Path:
    """A small Kimi-K3 with other values in the text model's part of config.json."""
    kimi_k3.make(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= text
    path.write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "text", [{"hidden_size": 10**400}, {"hidden_size": -(10**400)}, {"linear_attn_config": {"kda_layers": [1, 10**30]}}]
)
def test_numbers_of_no_model_are_refused(text: dict[str, object], tmp_path: Path) -> None:
    """They would overflow in every sum that follows: memory, speed, times."""
    folder = changed(tmp_path / "k3", **text)
    with pytest.raises(InputError, match=r"text_config\.\S+ is a larger number than any model has"):
        stored_model(open_checkpoint(folder))


@pytest.mark.parametrize("size", [-1, 0, 1, 3, 10**15])
def test_odd_counts_give_a_plan_or_a_reason(size: int, tmp_path: Path) -> None:
    """More experts a token than there are made the share that is visited a complex number."""
    names = ("num_experts", "hidden_size", "num_hidden_layers", "kv_lora_rank", "first_k_dense_replace")
    folder = changed(tmp_path / "k3")
    kept = json.loads((folder / "config.json").read_text())
    for name in names:
        (folder / "config.json").write_text(json.dumps({**kept, "text_config": {**kept["text_config"], name: size}}))
        with contextlib.suppress(TruecastError):
            plan_launch(stored_model(open_checkpoint(folder)), read_topology("gh200:1x1"))
