"""The same model out of every layout that truecast writes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.k3_checkpoint import SHAPE, edit_config, make
from truecast.cli.main import main
from truecast.models import open_model
from truecast.models.generate import logits
from truecast.models.packed import Packed

TOKENS = torch.from_numpy(np.random.default_rng(7).integers(0, 320, 24))
EXACT = [
    ("nvfp4", "modelopt"),
    ("nvfp4", "compressed-tensors"),
    ("fp8", "deepseek"),
    ("fp8", "compressed-tensors"),
    ("mxfp4", "deepseek"),
    ("mxfp4", "gpt-oss"),
    ("bf16", "bf16"),
]


def cast(source: Path, out: Path, target: str, dialect: str, *more: str) -> Path:
    assert (
        main(["convert", str(source), str(out), "--to", target, "--dialect", dialect, "--jobs", "1", "--quiet", *more])
        == 0
    )
    return out


@pytest.fixture(scope="module")
def wanted(k3: Path) -> dict[torch.dtype, Tensor]:
    return {d: logits(open_model(k3, dtype=d), TOKENS) for d in (torch.float32, torch.bfloat16)}


@pytest.mark.parametrize(("target", "dialect"), EXACT)
def test_exact_casts_give_the_same_logits(
    k3: Path, tmp_path: Path, wanted: dict[torch.dtype, Tensor], target: str, dialect: str
) -> None:
    out = cast(k3, tmp_path / "out", target, dialect)
    for dtype, before in wanted.items():
        assert torch.equal(logits(open_model(out, dtype=dtype), TOKENS), before)


def test_w4afp8_dialects_agree_and_differ_from_mxfp4(
    k3: Path, tmp_path: Path, wanted: dict[torch.dtype, Tensor]
) -> None:
    sglang = logits(open_model(cast(k3, tmp_path / "a", "w4afp8", "sglang")), TOKENS)
    words = logits(open_model(cast(k3, tmp_path / "b", "w4afp8", "compressed-tensors")), TOKENS)
    assert torch.equal(sglang, words)
    apart = (sglang - wanted[torch.float32]).square().mean().sqrt() / wanted[torch.float32].std()
    assert 0.01 < float(apart) < 0.6


def test_w4afp8_with_fp8_attention(tmp_path: Path) -> None:
    wide = replace(SHAPE, layers=2, experts=3, hidden=128, heads=2, head_dim=64)
    k3 = make(tmp_path / "k3", wide)
    model = open_model(cast(k3, tmp_path / "out", "w4afp8", "sglang", "--attention", "fp8"))
    attention = model.load_layer(0).attention  # type: ignore[attr-defined]
    assert isinstance(attention.q, Packed)
    assert attention.q.format == "fp8"
    plain = open_model(k3).load_layer(0).attention.q.weight()  # type: ignore[attr-defined]
    assert float((attention.q.weight() - plain).abs().max() / plain.abs().max()) < 2**-4
    assert torch.isfinite(logits(model, TOKENS)).all()


def test_a_quantized_matrix_anywhere(own_k3: Path, tmp_path: Path) -> None:
    """A layout is recognised by its tensors: here one attention matrix is MXFP4 too."""
    from safetensors.torch import load_file, save_file

    name = "language_model.model.layers.3.self_attn.o_proj"
    shard = next(p for p in own_k3.glob("*.safetensors") if f"{name}.weight" in load_file(p))
    tensors = load_file(shard)
    codes = torch.randint(0, 256, (64, 16), dtype=torch.uint8)
    del tensors[f"{name}.weight"]
    tensors |= {f"{name}.weight_packed": codes, f"{name}.weight_scale": torch.full((64, 1), 120, dtype=torch.uint8)}
    save_file(tensors, shard)
    index = own_k3 / "model.safetensors.index.json"
    entry = f'"{name}.weight": "{shard.name}"'
    assert entry in index.read_text()
    both = f'"{name}.weight_packed": "{shard.name}", "{name}.weight_scale": "{shard.name}"'
    index.write_text(index.read_text().replace(entry, both))
    out = open_model(own_k3).load_layer(3).attention.out  # type: ignore[attr-defined]
    assert isinstance(out, Packed)
    assert out.weight().shape == (64, 32)
    assert torch.isfinite(logits(open_model(own_k3), TOKENS)).all()


def test_the_configs_shape_is_held_against_the_tensors(k3: Path, tmp_path: Path) -> None:
    out = cast(k3, tmp_path / "out", "nvfp4", "modelopt")
    edit_config(out, moe_intermediate_size=96)
    with pytest.raises(Exception, match=r"w1.weight in model-00002.* 128 x 128; config.json makes it 96 x 128"):
        open_model(out).load_layer(1)
    shutil.rmtree(out)
