"""What a deployment has to know of a checkpoint, from headers."""

from __future__ import annotations

from pathlib import Path

from examples.shaped import kimi_k3
from truecast.checkpoint.source import open_checkpoint
from truecast.convert import Target, convert
from truecast.serve.stored_model import StoredModel, stored_model


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
