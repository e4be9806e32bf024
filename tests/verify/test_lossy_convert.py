"""What convert writes as W4AFP8, FP8 and back is proven."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from lossy_checkpoints import CONFIG, SHAPES, edited, mxfp4_source, plain_bf16
from test_int4 import write_weights
from verify_checkpoints import load_shard, write_checkpoint

from truecast.convert import Target, convert
from truecast.verify import Report, verify, verify_against


def proven(src: Path, out: Path, *, weights: Path | None = None) -> Report:
    certificate = out.with_name(out.name + ".json")
    report = verify(src, out, certificate=certificate, weights=weights)
    assert report.failures.kept == [] and report.notes == []
    for side in (src, out):
        assert verify_against(side, certificate).failures.kept == []
    return report


def with_attention(folder: Path) -> Path:
    """A source with one more attention weight, of whole FP8 blocks."""
    tensors = load_shard(next(mxfp4_source(folder / "small").glob("*.safetensors")))
    bits = plain_bf16(np.random.default_rng(5), 256, 128)
    tensors["model.layers.1.self_attn.k_proj.weight"] = "BF16", bits.shape, bits.tobytes()
    return write_checkpoint(folder / "src", [tensors], CONFIG)


@pytest.mark.parametrize("dialect", ["sglang", "compressed-tensors"])
@pytest.mark.parametrize("method", ["exact", "signed", "amax"])
def test_w4afp8(method: str, dialect: str, tmp_path: Path) -> None:
    src, out = with_attention(tmp_path), tmp_path / "out"
    convert(src, out, Target("w4afp8", dialect, method=method), card=lambda m: "# card\n")
    report = proven(src, out)
    assert report.quality.int4.matrices == 6
    assert report.quality.fp8.matrices == (dialect == "sglang")
    assert (report.quality.int4.unbeaten == report.quality.int4.groups) == (method == "exact")


def test_w4afp8_by_weights(tmp_path: Path) -> None:
    src, out, path = mxfp4_source(tmp_path / "src"), tmp_path / "out", tmp_path / "weights"
    rng = np.random.default_rng(0)
    write_weights(path, {f"model.layers.1.mlp.experts.*.{leaf}": np.exp(2 * rng.standard_normal(cols)).astype(np.float32)
                         for leaf, (_, cols) in SHAPES.items()})  # fmt: skip
    convert(src, out, Target("w4afp8", weights=path))
    assert proven(src, out, weights=path).quality.int4.unbeaten == 36 * 2


def test_between_the_dialects_and_back_to_bf16(tmp_path: Path) -> None:
    src = mxfp4_source(tmp_path / "src")
    convert(src, tmp_path / "sglang", Target("w4afp8", "sglang"))
    convert(tmp_path / "sglang", tmp_path / "ct", Target("w4afp8", "compressed-tensors"))
    assert proven(tmp_path / "sglang", tmp_path / "ct").quality.matrices == 0
    convert(tmp_path / "ct", tmp_path / "back", Target("w4afp8", "sglang"))
    proven(tmp_path / "ct", tmp_path / "back")
    for middle in ("sglang", "ct"):
        convert(tmp_path / middle, tmp_path / f"{middle}-bf16", Target("bf16", allow_inexact=True))
        assert proven(tmp_path / middle, tmp_path / f"{middle}-bf16").counts.inexact_elements > 0


@pytest.mark.parametrize("dialect", ["deepseek", "compressed-tensors"])
def test_fp8_exact_and_listed(dialect: str, tmp_path: Path) -> None:
    src, out = mxfp4_source(tmp_path / "src"), tmp_path / "out"
    convert(src, out, Target("fp8", dialect))
    assert proven(src, out).counts.inexact_elements == 0
    tensors = load_shard(next(src.glob("*.safetensors")))
    name = "model.layers.1.mlp.experts.0.gate_proj"
    edited(tensors, name + ".weight_packed", np.uint8, lambda a: a.__setitem__((0, slice(0, 16)), 0x71))
    edited(tensors, name + ".weight_scale", np.uint8, lambda a: a.__setitem__((0, slice(0, 4)), [100, 118, 118, 118]))
    wide = write_checkpoint(tmp_path / "wide", [tensors], CONFIG)
    convert(wide, tmp_path / "listed", Target("fp8", dialect, allow_inexact=True))
    lost = sum(json.loads((tmp_path / "listed" / "truecast.json").read_bytes())["inexact_matrices"].values())
    assert proven(wide, tmp_path / "listed").counts.inexact_elements == lost > 0
    convert(out, tmp_path / "bf16", Target("bf16", allow_inexact=True))
    proven(out, tmp_path / "bf16")
