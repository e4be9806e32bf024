"""Findings about W4AFP8 and FP8 checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from lossy_checkpoints import EXPERTS, aligned, edited
from verify_checkpoints import Tensors, load_shard, rewrite, write_checkpoint

from examples.shaped import kimi_k3
from truecast.convert import Target, convert
from truecast.verify.check import CheckReport, Finding, check

MODULE = f"{EXPERTS}.1.gate_proj"
ATTENTION = "model.layers.{}.self_attn.{}"
TARGETS = [("w4afp8", "sglang"), ("w4afp8", "compressed-tensors"), ("fp8", "deepseek"), ("fp8", "compressed-tensors")]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of attention, that of the first of whole blocks; experts in the second; no zeros."""
    rng = np.random.default_rng(0)
    shard: Tensors = {}
    for expert in range(2):
        for leaf, (rows, cols) in {"gate_proj": (128, 256), "up_proj": (128, 256), "down_proj": (256, 128)}.items():
            codes = rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
            scales = rng.integers(116, 122, (rows, cols // 32), dtype=np.uint8)
            shard[f"{EXPERTS}.{expert}.{leaf}.weight_packed"] = "U8", codes.shape, codes.tobytes()
            shard[f"{EXPERTS}.{expert}.{leaf}.weight_scale"] = "U8", scales.shape, scales.tobytes()
    for layer in range(2):
        for leaf in ("q_proj", "k_proj", "v_proj", "o_proj"):
            rows = 128 if layer == 0 else 100
            bits = rng.standard_normal((rows, 256)).astype(ml_dtypes.bfloat16)
            shard[ATTENTION.format(layer, leaf) + ".weight"] = "BF16", (rows, 256), bits.tobytes()
    bits = rng.standard_normal((64, 256)).astype(ml_dtypes.bfloat16)
    for name in ("lm_head", "model.embed_tokens", "model.layers.1.mlp.gate"):
        shard[name + ".weight"] = "BF16", (64, 256), bits.tobytes()
    return write_checkpoint(tmp_path_factory.mktemp("check") / "src", [shard], {"model_type": "toy_moe"})


@pytest.fixture
def made(source: Path, tmp_path: Path) -> Callable[..., Path]:
    def make(form: str, dialect: str) -> Path:
        convert(source, tmp_path / "out", Target(form, dialect))
        return tmp_path / "out"

    return make


def findings(out: Path) -> list[tuple[str, str]]:
    """Without the one that every W4AFP8 checkpoint with plain modules has."""
    return [(f.id, f.severity) for f in check(out).findings if f.id != "ignored-not-read"]


def only(out: Path, rule: str, severity: str = "error") -> Finding:
    report: CheckReport = check(out)
    kept = [f for f in report.findings if f.id != "ignored-not-read"]
    assert [(f.id, f.severity) for f in kept] == [(rule, severity)], [str(f) for f in kept]
    return kept[0]


def alter(out: Path, name: str, dtype: Any, edit: Callable[[np.ndarray], None]) -> None:
    def change(tensors: Tensors) -> None:
        if name in tensors:
            edited(tensors, name, dtype, edit)

    rewrite(out, change)


def drop(out: Path, *suffixes: str) -> None:
    def change(tensors: Tensors) -> None:
        for name in [n for n in tensors if n.endswith(suffixes)]:
            del tensors[name]

    rewrite(out, change)


def configure(out: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((out / "config.json").read_text())
    edit(config["quantization_config"])
    (out / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_what_convert_writes_is_sound(made: Callable[..., Path], target: tuple[str, str]) -> None:
    out = made(*target)
    report = check(out)
    wanted = ["ignored-not-read"] if target == ("w4afp8", "sglang") else []
    assert [f.id for f in report.findings] == wanted, [str(f) for f in report.findings]
    assert report.counts["matrices"] == 6 + (4 if target == ("w4afp8", "sglang") else 0)


def test_plain_modules_that_no_stock_engine_leaves_plain(made: Callable[..., Path]) -> None:
    finding = next(f for f in check(made("w4afp8", "sglang")).findings if f.id == "ignored-not-read")
    assert finding.severity == "warning" and "6 linear modules are plain" in finding.message


SCALES = [(*TARGETS[0], ".weight_scale_inv", np.uint16), (*TARGETS[1], ".weight_scale", np.uint16)]
FP8 = [(*TARGETS[2], ".weight_scale_inv", np.float32), (*TARGETS[3], ".weight_scale", np.float32)]


def as_bits(value: float, dtype: Any) -> Any:
    return np.array(value, ml_dtypes.bfloat16).view(np.uint16) if dtype == np.uint16 else value


@pytest.mark.parametrize(("form", "dialect", "suffix", "dtype"), SCALES + FP8)
@pytest.mark.parametrize(
    ("value", "rule", "severity"),
    [
        (np.nan, "scale-nan", "error"),
        (np.inf, "scale-nan", "error"),
        (0.0, "scale-zero", "error"),
        (2.0**-130, "factor-subnormal", "warning"),
    ],
)
def test_faulty_scales(
    made: Callable[..., Path], form: str, dialect: str, suffix: str, dtype: Any, value: float, rule: str, severity: str
) -> None:
    out = made(form, dialect)
    alter(out, MODULE + suffix, dtype, lambda a: a.__setitem__((-1, -1), as_bits(value, dtype)))
    finding = only(out, rule, severity)
    assert finding.place.tensor == MODULE + suffix
    rows, blocks = {"sglang": (128, 2), "deepseek": (1, 2)}.get(dialect, (128, 2 if form == "w4afp8" else 1))
    assert (finding.place.row, finding.place.block) == (rows - 1, blocks - 1)


@pytest.mark.parametrize(("form", "dialect", "suffix", "dtype"), SCALES)
def test_a_negative_group_scale_is_legal_and_a_zero_one_over_zeros_harmless(
    made: Callable[..., Path], form: str, dialect: str, suffix: str, dtype: Any
) -> None:
    out = made(form, dialect)
    alter(out, MODULE + suffix, dtype, lambda a: a.__ixor__(0x8000))
    assert findings(out) == []
    alter(out, MODULE + suffix, dtype, lambda a: a.__setitem__((3, 1), 0))
    codes = ".weight" if dialect == "sglang" else ".weight_packed"
    zero = 0 if dialect == "sglang" else 0x88
    alter(out, MODULE + codes, np.uint8, lambda a: a.__setitem__((3, slice(64, 128)), zero))
    assert only(out, "scale-zero", "warning").place.block == 1


@pytest.mark.parametrize(("form", "dialect", "suffix", "dtype"), FP8)
def test_a_negative_fp8_scale(made: Callable[..., Path], form: str, dialect: str, suffix: str, dtype: Any) -> None:
    out = made(form, dialect)
    alter(out, MODULE + suffix, dtype, lambda a: a.__imul__(-1))
    assert "no writer means" in only(out, "scale-negative").why


@pytest.mark.parametrize(("form", "dialect"), TARGETS)
def test_a_matrix_of_zeros(made: Callable[..., Path], form: str, dialect: str) -> None:
    out = made(form, dialect)
    suffix = ".weight_packed" if (form, dialect) == TARGETS[1] else ".weight"
    alter(out, MODULE + suffix, np.uint8, lambda a: a.fill(0x88 if suffix != ".weight" else 0))
    scale = ".weight_scale" if dialect == "compressed-tensors" else ".weight_scale_inv"
    assert findings(out) == []  # scales of many values: not looked into
    width = np.uint16 if form == "w4afp8" else np.float32
    alter(out, MODULE + scale, width, lambda a: a.fill(as_bits(1.0, width)))
    only(out, "matrix-all-zero", "warning")


def test_scales_that_bf16_does_not_hold(made: Callable[..., Path]) -> None:
    out = made("w4afp8", "sglang")

    def widen(tensors: Tensors) -> None:
        for name, (dtype, shape, data) in list(tensors.items()):
            if name == MODULE + ".weight_scale_inv":
                values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).copy()
                values[5] = np.nextafter(values[5], np.float32(9))
                tensors[name] = "F32", shape, values.tobytes()
            else:
                tensors[name] = dtype, shape, data
        ordered = aligned(tensors)
        tensors.clear()
        tensors |= ordered

    rewrite(out, widen)
    finding = only(out, "scale-not-bf16", "warning")
    assert (finding.place.row, finding.place.block) == (2, 1) and "1 of 256" in finding.message


def test_a_wrong_stored_shape(made: Callable[..., Path]) -> None:
    out = made("w4afp8", "compressed-tensors")
    alter(out, MODULE + ".weight_shape", np.int64, lambda a: a.__setitem__(1, 255))
    assert "says [128, 255]" in only(out, "stored-shape").message


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_faulty_input_scales(made: Callable[..., Path], value: float) -> None:
    out = made("w4afp8", "sglang")
    alter(out, MODULE + ".input_scale", np.float32, lambda a: a.fill(value))
    only(out, "input-scale-invalid")


def test_missing_input_scales(made: Callable[..., Path]) -> None:
    out = made("w4afp8", "sglang")
    drop(out, "1.gate_proj.input_scale")
    assert only(out, "input-scale-partial", "warning").place.module == MODULE
    drop(out, ".input_scale")
    only(out, "input-scale-default", "warning")


def test_missing_scales(made: Callable[..., Path]) -> None:
    out = made("w4afp8", "sglang")
    drop(out, "1.gate_proj.weight_scale_inv", "1.gate_proj.input_scale")
    assert ("scale-missing", "error") in findings(out)


def test_misshapen_block_scales(made: Callable[..., Path]) -> None:
    out = made("fp8", "deepseek")

    def reshape(tensors: Tensors) -> None:
        name = MODULE + ".weight_scale_inv"
        if name in tensors:
            dtype, _, data = tensors[name]
            tensors[name] = dtype, (2, 1), data

    rewrite(out, reshape)
    assert ("scale-shape", "error") in findings(out)


def test_missing_parts_of_words(made: Callable[..., Path]) -> None:
    out = made("w4afp8", "compressed-tensors")
    drop(out, "1.gate_proj.weight_scale")
    assert ("scale-missing", "error") in findings(out)
    drop(out, "1.gate_proj.weight_packed")
    assert ("scale-orphan", "error") in findings(out)


CONFIGS = [
    (TARGETS[0], lambda b: b.update(quant_method="fp8"), "config-method"),
    (TARGETS[0], lambda b: b.update(group_size=64), "config-group-size"),
    (TARGETS[0], lambda b: b.update(weight_block_size=[64, 128]), "config-group-size"),
    (TARGETS[0], lambda b: b.update(modules_to_not_convert=["lm_head"]), "config-contradiction"),
    (TARGETS[1], lambda b: b.update(format="float-quantized", config_groups={}), "config-method"),
    (TARGETS[1], lambda b: b["config_groups"]["group_0"]["weights"].update(num_bits=8), "config-method"),
    (TARGETS[1], lambda b: b["config_groups"]["group_0"]["weights"].update(symmetric=False), "config-method"),
    (TARGETS[1], lambda b: b["config_groups"]["group_0"]["weights"].update(group_size=32), "config-group-size"),
    (TARGETS[2], lambda b: b.pop("weight_block_size"), "config-group-size"),
    (TARGETS[2], lambda b: b.update(quant_method="w4afp8x"), "config-method"),
    (TARGETS[3], lambda b: b["config_groups"]["group_0"]["weights"].update(type="int"), "config-method"),
]


@pytest.mark.parametrize(("target", "edit", "rule"), CONFIGS)
def test_configs_that_say_something_else(
    made: Callable[..., Path], target: tuple[str, str], edit: Callable[[dict[str, Any]], None], rule: str
) -> None:
    out = made(*target)
    configure(out, edit)
    assert (rule, "error") in findings(out)


def test_a_claim_of_w4afp8_over_plain_tensors(source: Path, tmp_path: Path) -> None:
    plain = {n: t for n, t in load_shard(next(source.glob("*.safetensors"))).items() if EXPERTS not in n}
    block = {"quantization_config": {"quant_method": "w4afp8"}}
    out = write_checkpoint(tmp_path / "plain", [plain], block)
    assert any("declares W4AFP8" in f.message for f in check(out).findings)


def relist(out: Path, edit: Callable[[list[str]], list[str]]) -> None:
    def change(block: dict[str, Any]) -> None:
        for key in ("ignored_layers", "modules_to_not_convert"):
            if key in block:
                block[key] = edit(block[key])

    configure(out, change)


@pytest.mark.parametrize("target", [TARGETS[0], TARGETS[2]], ids="-".join)
def test_the_ignored_layers(made: Callable[..., Path], target: tuple[str, str]) -> None:
    out = made(*target)
    listed = json.loads((out / "config.json").read_text())["quantization_config"]["modules_to_not_convert"]
    relist(out, lambda names: [n for n in names if not n.endswith("mlp.gate")])
    assert only(out, "exclude-misses-plain").place.module == "model.layers.1.mlp.gate"
    relist(out, lambda names: [n for n in listed if not n.endswith("1.self_attn.k_proj") and "qkv" not in n])
    assert ("fused-partial", "error") in findings(out)
    relist(out, lambda names: [*listed, EXPERTS])
    assert ("exclude-hits-quantized", "error") in findings(out)
    relist(out, lambda names: [*listed, "model.layers.7.nothing"])
    assert findings(out) == [("exclude-matches-nothing", "warning")]
    if target == TARGETS[0]:
        relist(out, lambda names: [*listed, ATTENTION.format(0, "o_proj")])
        assert only(out, "exclude-hits-quantized").place.module == ATTENTION.format(0, "o_proj")
    else:
        relist(
            out, lambda names: [n for n in listed if "layers.1" not in n] + ["layers.1.self_attn", "layers.1.mlp.gate"]
        )
        found = [f for f in check(out).findings if f.id == "exclude-misses-plain"]
        assert found and all("in vLLM" in f.message for f in found)


@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_kimi_k3_has_no_error_under_any_of_its_spellings(target: tuple[str, str], tmp_path: Path) -> None:
    """Its key projections are FP8, while two small ones that vLLM alone fuses with them stay plain."""
    kimi_k3.make(tmp_path / "src", shape=kimi_k3.K3Shape(layers=4, experts=2, expert_width=256, heads=4))
    convert(tmp_path / "src", tmp_path / "out", Target(*target, allow_inexact=True))
    assert [str(f) for f in check(tmp_path / "out").findings if f.severity == "error"] == []
