"""Bad checkpoints are refused by name, and what is read is what is said to be read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.k3_checkpoint import edit_config, rewrite
from truecast.checkpoint.files import ByteFile, Opener, opened
from truecast.checkpoint.source import open_checkpoint
from truecast.errors import InputError
from truecast.layouts.recognise import recognise
from truecast.models import open_model
from truecast.models.packed import Packed
from truecast.models.stored import Stored

LAYER = "language_model.model.layers."


def test_a_log_behind_the_heads_must_be_zero(own_k3: Path) -> None:
    name = f"{LAYER}1.self_attn.A_log"
    values = np.zeros(128, "<f4")
    values[2] = 1e-30
    rewrite(own_k3, name, values)
    with pytest.raises(InputError, match=r"A_log in model-00002.*128 values for 2 heads"):
        open_model(own_k3).load_layer(1)
    values[2] = -0.0
    rewrite(own_k3, name, values)
    layer = open_model(own_k3).load_layer(1)
    assert layer.attention.a_log.shape == (2,)  # type: ignore[attr-defined]


def test_a_scale_that_is_no_number(own_k3: Path) -> None:
    rewrite(own_k3, f"{LAYER}2.block_sparse_moe.experts.3.w2.weight_scale", np.full((128, 4), 255, np.uint8))
    with pytest.raises(InputError, match=r"experts.3.w2.weight_scale in model-00003"):
        open_model(own_k3).load_layer(2)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("block_sparse_moe.gate.e_score_correction_bias", 6),  # decides who is chosen, and is in no product
        ("self_attn.A_log", 128),
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_number(own_k3: Path, name: str, size: int, value: float) -> None:
    rewrite(own_k3, f"{LAYER}2.{name}", np.array([value] + [0.0] * (size - 1), "<f4"))
    with pytest.raises(InputError, match=rf"{name} in model-00003.*no finite number"):
        open_model(own_k3).load_layer(2)


def test_a_missing_tensor(own_k3: Path) -> None:
    for path in (*own_k3.glob("model-00004*.safetensors"), own_k3 / "model.safetensors.index.json"):
        path.write_bytes(path.read_bytes().replace(b"3.self_attn.kv_a_layernorm", b"3.self_attn.kv_a_layernomm"))
    with pytest.raises(InputError, match=r"3.self_attn.kv_a_layernorm.weight"):
        open_model(own_k3).layer_tensors(3)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"kv_lora_rank": 32}, r"kv_a_proj_with_mqa.weight in model-00004.*\[32, 64\].*\[40, 64\]"),
        ({"num_experts": 7}, r"experts.6.w1"),
        ({"attn_res_block_size": 0}, "attn_res_block_size"),
        ({"num_attention_heads": "2"}, "num_attention_heads"),
        ({"num_hidden_layers": 5}, "kda_layers"),
        ({"num_hidden_layers": 1 << 24}, "kda_layers"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"activation_situ_beta": 0}, "activation_situ_beta"),
        ({"routed_scaling_factor": 1e300}, "routed_scaling_factor"),
        ({"attn_res_block_size": [[]] * 10_000}, r"^.{0,300}$"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"num_expert_group": 2}, "num_expert_group"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"num_experts_per_token": 99}, "num_experts_per_token"),
        ({"routed_scaling_factor": None}, "routed_scaling_factor"),
        ({"linear_attn_config": [1]}, "linear_attn_config"),
        ({"vocab_size": 321}, r"embed_tokens.weight in model-00005.*\[321, 64\]"),
    ],
)
def test_a_config_that_does_not_fit(own_k3: Path, change: dict[str, Any], word: str) -> None:
    edit_config(own_k3, **change)
    with pytest.raises(InputError, match=word):
        model = open_model(own_k3)
        model.embedding_tensor()
        for i in range(model.layers):
            model.load_layer(i)


@pytest.mark.parametrize(
    ("layout", "factor"),
    [
        (("weight", "weight_scale_2", "input_scale"), 0.25),
        (("weight_packed", "weight_global_scale", "input_global_scale"), 4.0),
    ],
)
def test_scales_multiply_whether_stored_so_or_inverted(tmp_path: Path, layout: tuple[str, ...], factor: float) -> None:
    from safetensors.torch import save_file

    codes, global_scale, input_scale = (f"m.{part}" for part in layout)
    tensors = {
        codes: torch.full((2, 16), 0x22, dtype=torch.uint8),
        "m.weight_scale": torch.ones(2, 2).to(torch.float8_e4m3fn),
        global_scale: torch.tensor([factor]),
        input_scale: torch.tensor([factor]),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    with opened(checkpoint.opener) as read:
        matrix = Stored(checkpoint, recognise(checkpoint.tensors), torch.device("cpu"), torch.float32, read).linear(
            "m", 2, 32
        )
    assert isinstance(matrix, Packed)
    assert torch.equal(matrix.weight(), torch.full((2, 32), 0.25))
    assert matrix.input_scale is not None
    assert float(matrix.input_scale) == 0.25


def test_no_config(own_k3: Path) -> None:
    (own_k3 / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    with pytest.raises(InputError, match="gpt_oss"):
        open_model(own_k3)
    (own_k3 / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json"):
        open_model(own_k3)


@dataclass
class Counting:
    """An opener that adds up what is read."""

    inner: Opener
    total: int = 0

    def __call__(self, name: str) -> ByteFile:
        file = self.inner(name)
        read, read_into = file.read, file.read_into

        class Counted:
            size, chunk_bytes, close, forget = file.size, file.chunk_bytes, file.close, file.forget

            @staticmethod
            def read(start: int, end: int) -> bytes:
                self.total += end - start
                return read(start, end)

            @staticmethod
            def read_into(start: int, buffer: memoryview) -> None:
                self.total += len(buffer)
                read_into(start, buffer)

        return Counted  # type: ignore[return-value]


def test_every_text_tensor_is_read_once(k3: Path) -> None:
    model = open_model(k3)
    counting = model.checkpoint.opener = Counting(model.checkpoint.opener)
    names: list[str] = []
    for i in range(model.layers):
        before, tensors = counting.total, model.layer_tensors(i)
        assert counting.total == before
        layer = model.load_layer(i)
        assert counting.total - before == sum(t.nbytes for t in tensors)
        assert layer.nbytes > 0.9 * sum(t.nbytes for t in tensors)
        names += [t.name for t in tensors]
    before = counting.total
    model.load_head()
    assert counting.total - before == sum(t.nbytes for t in model.head_tensors())
    before = counting.total
    model.embed(torch.arange(320))
    assert counting.total - before == model.embedding_tensor().nbytes
    names += [t.name for t in model.head_tensors()] + [model.embedding_tensor().name]
    text = {n for n in model.checkpoint.tensors if n.startswith("language_model.")}
    unused = {f"{LAYER}0.self_attention_res_{part}.weight" for part in ("norm", "proj")}
    assert len(names) == len(set(names))
    assert set(names) == text - unused


def test_embedding_in_slabs(k3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from truecast.models import embedding

    model, tokens = open_model(k3), torch.tensor([319, 0, 7, 7, 100])
    wanted = model.load_embedding()[tokens]
    monkeypatch.setattr(embedding, "_SLAB_BYTES", 7 * 128)
    assert torch.equal(model.embed(tokens).stream, wanted)
