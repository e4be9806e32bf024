"""What the model card says of casts that are not the plain one, and what it takes over from the source's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from truecast.checkpoint.header import encode_header
from truecast.convert import Target, convert
from truecast.convert.source_card import MAX_BYTES, front_matter
from truecast.errors import InexactError
from truecast.report.card import render_card
from truecast.report.outcome import outcome_line
from truecast.report.words import counted

EXPERT = "model.layers.0.mlp.experts.0."
LEAVES = ("gate_proj", "up_proj", "down_proj")
CONFIG = {"architectures": ["ToyForCausalLM"], "model_type": "toy"}


@pytest.fixture
def source(tmp_path: Path, write_checkpoint: Callable[..., Path]) -> Path:
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    for leaf in LEAVES:
        tensors[EXPERT + leaf + ".weight_packed"] = "U8", (128, 64), rng.bytes(128 * 64)
        tensors[EXPERT + leaf + ".weight_scale"] = "U8", (128, 4), rng.integers(118, 122, 512, dtype=np.uint8).tobytes()
    return write_checkpoint(tmp_path / "src", {"model.safetensors": tensors}, CONFIG)


def card(source: Path, out: Path, target: Target) -> str:
    convert(source, out, target, card=render_card)
    return (out / "README.md").read_text()


def test_weights_are_named_where_they_were_used(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "my weights.safetensors"
    path.write_bytes(encode_header([(EXPERT + leaf, "F32", (128,)) for leaf in LEAVES], {}) + bytes(3 * 512))
    text = card(source, tmp_path / "out", Target("w4afp8", weights=path))
    assert "each with the BF16 scale of least weighted squared error" in text
    assert "\ntruecast verify SOURCE THIS_FOLDER --weights 'my weights.safetensors'\n" in text
    assert "by these weights no neighbouring BF16 scale would do better" in text
    assert "scales: least weighted squared error" in text
    assert "--weights" not in card(source, tmp_path / "plain", Target("w4afp8"))


@pytest.mark.parametrize(("method", "rule"), [("signed", "largest value to -8"), ("amax", "largest magnitude to 7")])
def test_a_rule_is_proved_by_its_own_result(source: Path, tmp_path: Path, method: str, rule: str) -> None:
    text = card(source, tmp_path / "out", Target("w4afp8", method=method))
    assert f"scales: {rule}." in text and "every scale is the one that the rule gives" in text
    assert "neighbouring" not in text and "least" not in text


def test_another_dialect_claims_nothing_of_the_original(source: Path, tmp_path: Path) -> None:
    card(source, tmp_path / "w4afp8", Target("w4afp8"))
    text = card(tmp_path / "w4afp8", tmp_path / "there", Target("w4afp8", "compressed-tensors"))
    assert "its source, which is itself a W4AFP8 checkpoint: its own card says how far that is off." in text
    assert "What it costs" not in text and "compares every element as integers" in text
    assert "equals" not in text
    card(source, tmp_path / "fp8", Target("fp8"))
    text = card(tmp_path / "fp8", tmp_path / "fp8-bf16", Target("bf16"))
    assert "which is itself an FP8 checkpoint" in text and "equals" not in text


def test_block_scales_are_called_powers_of_two_where_they_come_from_mxfp4(source: Path, tmp_path: Path) -> None:
    assert "powers of two" in card(source, tmp_path / "nvfp4", Target("nvfp4"))
    text = card(tmp_path / "nvfp4", tmp_path / "there", Target("nvfp4", "compressed-tensors"))
    assert "every weight equals the source's weight exactly" in text and "powers of two" not in text


@pytest.mark.parametrize("to", ["bf16", "fp8"])
def test_rounded_elements_are_counted_not_listed(
    source: Path, tmp_path: Path, write_checkpoint: Callable[..., Path], to: str
) -> None:
    if to == "bf16":  # a BF16 scale times a code has more bits than BF16
        start = tmp_path / "w4afp8"
        convert(source, start, Target("w4afp8"))
    else:
        scales = np.where(np.arange(512) % 2, 127, 10).astype(np.uint8).tobytes()
        codes = np.arange(128 * 64, dtype=np.uint8).tobytes()
        tensors = {f"m.{leaf}.weight_packed": ("U8", (128, 64), codes) for leaf in "abc"}
        tensors |= {f"m.{leaf}.weight_scale": ("U8", (128, 4), scales) for leaf in "abc"}
        start = write_checkpoint(tmp_path / "wide", {"model.safetensors": tensors}, CONFIG)
    manifest = convert(start, tmp_path / "out", Target(to, allow_inexact=True), card=render_card)
    text = (tmp_path / "out" / "README.md").read_text()
    counts = list(manifest["inexact_matrices"].values())
    assert f"{sum(counts):,} elements in 3 matrices are rounded; `truecast.json` counts them by matrix." in text
    assert "lists them" not in text
    assert outcome_line(manifest).startswith(f"not exact: {sum(counts):,} elements in 3 matrices are rounded")
    with pytest.raises(InexactError, match=f": {counts[0]:,} elements cannot be exact .*together {sum(counts):,}") as e:
        convert(start, tmp_path / "refused", Target(to))
    assert e.value.fix == "add --inexact allow to take the nearest values, which are then counted by matrix"


def test_activations(source: Path, tmp_path: Path, write_checkpoint: Callable[..., Path]) -> None:
    assert "| activations | FP8, static scales of 1.0 |" in card(source, tmp_path / "a", Target("w4afp8"))
    other = card(source, tmp_path / "b", Target("w4afp8", "compressed-tensors"))
    assert "| activations | FP8, scaled per token |" in other
    assert "| activations | FP8, scaled at run time |" in card(source, tmp_path / "c", Target("fp8"))
    assert "| activations | not quantized (weight-only) |" in card(source, tmp_path / "d", Target("bf16"))
    nvfp4 = card(source, tmp_path / "e", Target("nvfp4", activations=True))
    assert "| activations | NVFP4, static scales of 1.0 |" in nvfp4
    card(tmp_path / "e", tmp_path / "f", Target("nvfp4", "compressed-tensors"))
    there = card(tmp_path / "f", tmp_path / "g", Target("nvfp4", "modelopt"))
    assert "| activations | NVFP4, static scales of the source |" in there
    said = [json.loads((tmp_path / name / "truecast.json").read_text())["target"]["activations"] for name in "abcde"]
    assert said == ["fp8", "fp8", "fp8", "none", "nvfp4"]


def test_descent_and_licence_are_taken_over(source: Path, tmp_path: Path) -> None:
    (source / "README.md").write_text(
        "---\nlicense: other\nlicense_name: 'somebody''s'\nlicense_link: LICENSE # here\n"
        'base_model: "org/Model-1.5"\ntags: [x]\n---\n# Title\nlicense: mit\n'
    )
    text = card(source, tmp_path / "out", Target("nvfp4"))
    head = text.split("---\n")[1].splitlines()
    assert head[1:6] == [
        'base_model: "org/Model-1.5"',
        'license: "other"',
        'license_name: "somebody\'s"',
        'license_link: "LICENSE"',
        "base_model_relation: quantized",
    ]
    assert "\n# Model-1.5, NVFP4 (modelopt)\n" in text
    (source / "README.md").write_text("---\nbase_model: org/Model-1.5\nmodel_name: Model one\n---\n")
    text = card(source, tmp_path / "named", Target("nvfp4"))
    assert "\n# Model one, NVFP4 (modelopt)\n" in text and "model_name" not in text


def test_the_configs_name_is_the_base_model(source: Path, tmp_path: Path) -> None:
    (source / "config.json").write_text(json.dumps(CONFIG | {"_name_or_path": "org/Toy"}))
    text = card(source, tmp_path / "a", Target("nvfp4"))
    assert '\nbase_model: "org/Toy"\n' in text and "\n# Toy, NVFP4 (modelopt)\n" in text
    for i, name in enumerate(["/home/me/models/Toy", "../Toy", ["org/Toy"], "org/To\ny", {"a": 1}, ""]):
        (source / "config.json").write_text(json.dumps(CONFIG | {"_name_or_path": name}))
        assert "base_model:" not in card(source, tmp_path / f"b{i}", Target("nvfp4"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "license: mit",
        "---\nlicense: mit\n",  # no end
        "---\n" + "x: y\n" * MAX_BYTES + "license: mit\n---\n",  # no end in reach, were it cut off
        "---\nlicense: [mit]\n---\n",
        "---\nlicense: &a mit\n---\n",
        "---\nlicense: |\n  mit\n---\n",
        '---\nlicense: "mit\n---\n',
        '---\nlicense: "m\\u000ait"\n---\n',
        "---\nlicense: a: b\n---\n",
        "---\n license: mit\n---\n",
        "---\nlicense: " + "x" * 201 + "\n---\n",
        "---\nlicense: \x1b[31m\n---\n",
        "---\nlicense:\n- mit\n---\n",
        "---\nbase_model: ../../etc\n---\n",
        "---\nbase_model: not a name\n---\n",
    ],
)
def test_whatever_is_not_plain_is_left_out(text: str) -> None:
    assert front_matter(text.encode()[:MAX_BYTES]) == {}


def test_bytes_that_are_no_text() -> None:
    assert front_matter(b"---\nlicense: \xff\nlicense_name: ok\n---\n") == {"license_name": "ok"}


def test_counted() -> None:
    told = [counted(0, "error"), counted(1, "matrix"), counted(2, "matrix"), counted(1000, "half block")]
    assert told == ["0 errors", "1 matrix", "2 matrices", "1,000 half blocks"]
