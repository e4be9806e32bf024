"""Findings from the scales' bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkmaking import Made, kimi, moe

from truecast.cli.main import main
from truecast.verify.check.findings import Finding

MODULE = "model.layers.1.mlp.experts.2.down_proj"


@pytest.fixture
def made(tmp_path):
    return moe(tmp_path / "m")


def only(made: Made, rule: str, severity: str = "error") -> Finding:
    """The one finding of the checkpoint."""
    report = made.check()
    assert [(f.id, f.severity) for f in report.findings] == [(rule, severity)], [str(f) for f in report.findings]
    assert report.ok == (severity == "warning")
    return report.findings[0]


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_nan_block_scale(made, byte):
    made.array(MODULE + ".weight_scale")[5, 2] = byte
    made.array(MODULE + ".weight_scale")[7, 3] = byte
    finding = only(made, "scale-nan")
    assert (finding.place.tensor, finding.place.row, finding.place.block) == (MODULE + ".weight_scale", 5, 2)
    assert finding.place.file == "model-00002-of-00002.safetensors"
    assert "2 of 32 blocks" in finding.message


def test_nan_e8m0(tmp_path):
    made = moe(tmp_path / "m", "mxfp4-compressed-tensors")
    made.array(MODULE + ".weight_scale")[3, 1] = 255
    made.array(MODULE + ".weight_packed")[3] = 0  # over zero codes too
    finding = only(made, "scale-nan")
    assert (finding.place.row, finding.place.block) == (3, 1)


def test_e8m0_byte_0_is_a_value(tmp_path):
    made = moe(tmp_path / "m", "mxfp4-compressed-tensors")
    made.array(MODULE + ".weight_scale")[:] = 0
    assert not made.check().findings


@pytest.mark.parametrize("byte", [0x00, 0x80])
def test_zero_scale_over_codes(made, byte):
    made.array(MODULE + ".weight_scale")[1, 3] = byte
    made.array(MODULE + ".weight")[1, 24:32] = [0, 0, 0, 0, 0, 0, 0, 0x10]
    finding = only(made, "scale-zero")
    assert (finding.place.row, finding.place.block) == (1, 3)


def test_zero_scale_over_zero_codes_is_harmless(made):
    made.array(MODULE + ".weight_scale")[1, 3] = 0
    made.array(MODULE + ".weight")[1, 24:32] = 0x80  # minus zero counts as zero
    assert "codes" in only(made, "scale-zero", "warning").message


def test_negative_scale(made):
    made.array(MODULE + ".weight_scale")[0, 0] = 0xB8
    only(made, "scale-negative")


def test_subnormal_scale(made):
    made.array(MODULE + ".weight_scale")[2, 0] = 0x07
    made.array(MODULE + ".weight_scale")[2, 1] = 0x08  # 2^-6, the smallest normal
    made.array(MODULE + ".weight_scale")[3, 1] = 0x01
    made.array(MODULE + ".weight")[3, 8:16] = 0  # over zero codes it does not matter
    finding = only(made, "scale-subnormal", "warning")
    assert "1 of 32 blocks" in finding.message
    assert (finding.place.row, finding.place.block) == (2, 0)


@pytest.mark.parametrize(
    "gpu, dtype, severity",
    [
        ("h200", None, "error"),
        ("GH200", "bfloat16", "error"),
        ("h200", "float16", "warning"),
        ("b200", None, "warning"),
    ],
)
def test_subnormal_scale_is_an_error_where_the_gpu_reads_it_wrong(made, capsys, gpu, dtype, severity):
    made.array(MODULE + ".weight_scale")[2, 0] = 0x07
    made.array(MODULE + ".weight_scale")[0, 0] = 0xB8  # another rule's severity stays
    if dtype is not None:
        made.config["torch_dtype"] = dtype
    made.write()
    code = main(["check", str(made.folder), "--hardware", gpu, "--json"])
    found = json.loads(capsys.readouterr().out)
    severities = {finding["id"]: finding["severity"] for finding in found["findings"]}
    assert severities == {"scale-subnormal": severity, "scale-negative": "error"}
    assert code == 1 and found["errors"] == (2 if severity == "error" else 1)


def test_no_such_hardware(made, capsys):
    made.write()
    assert main(["check", str(made.folder), "--hardware", "h2000"]) == 2
    assert "h200" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["nvfp4-modelopt", "mxfp4-compressed-tensors"])
def test_all_zero_matrix(tmp_path, layout):
    made = moe(tmp_path / "m", layout)
    codes = MODULE + (".weight" if layout == "nvfp4-modelopt" else ".weight_packed")
    made.array(codes)[:] = 0x08
    made.array(MODULE + ".weight_scale")[:] = 0x60
    only(made, "matrix-all-zero", "warning")


def test_equal_scales_over_weights_are_fine(made):
    made.array(MODULE + ".weight_scale")[:] = 0x60
    assert not made.check().findings


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_invalid_global_scale(made, value):
    made.array(MODULE + ".weight_scale_2")[...] = value
    assert only(made, "global-scale-invalid").place.tensor == MODULE + ".weight_scale_2"


def test_zero_global_scale(made):
    made.array(MODULE + ".weight_scale_2")[...] = 0
    only(made, "global-scale-zero")


def test_subnormal_global_scale(made):
    made.array(MODULE + ".weight_scale_2")[...] = 2.0**-130
    only(made, "global-scale-subnormal", "warning")


def test_subnormal_reciprocal(tmp_path):
    made = moe(tmp_path / "m", "nvfp4-compressed-tensors")
    made.array(MODULE + ".weight_global_scale")[...] = 2.0**127
    only(made, "global-scale-subnormal", "warning")


@pytest.mark.parametrize("layout", ["nvfp4-modelopt", "nvfp4-compressed-tensors"])
def test_global_scale_of_the_other_convention(tmp_path, layout):
    made = moe(tmp_path / "m", layout)
    name = MODULE + (".weight_scale_2" if layout == "nvfp4-modelopt" else ".weight_global_scale")
    made.array(name)[...] = 1 / made.array(name)
    finding = only(made, "global-scale-convention")
    assert ("divisor" if "compressed" in layout else "multiplier") in finding.message


def test_twins_differ(made):
    made.array("model.layers.0.mlp.experts.1.up_proj.weight_scale_2")[...] *= 8
    finding = only(made, "twins-differ")
    assert finding.place.module == "model.layers.0.mlp.experts.1.gate_proj"
    assert "gate_proj 0.000244141, up_proj 0.00195312" in finding.message


def test_twins_across_shards_differ(tmp_path):
    made = kimi(tmp_path / "m", "nvfp4-modelopt")
    prefix = "language_model.model.layers.1.block_sparse_moe.experts.0"
    for name in [n for n in made.shards[1] if n.startswith(prefix + ".w3")]:
        made.shards[0][name] = made.shards[1].pop(name)
    made.array(prefix + ".w3.weight_scale_2")[...] *= 2
    assert made.check().totals["twins-differ"] == 1


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_invalid_input_scale(tmp_path, value):
    made = moe(tmp_path / "m", input_scale=True)
    made.array(MODULE + ".input_scale")[...] = value
    only(made, "input-scale-invalid")


def test_input_scale_of_some_experts_missing(tmp_path):
    made = moe(tmp_path / "m", input_scale=True)
    made.drop(r"layers\.1\.mlp\.experts\.2\.down_proj\.input_scale")
    assert only(made, "input-scale-missing").place.module == MODULE


def test_input_scale_of_a_whole_bank_missing(tmp_path):
    made = moe(tmp_path / "m", input_scale=True)
    made.drop(r"layers\.1\..*input_scale")
    assert made.check().totals == {"input-scale-missing": 9}


def test_w4a4_declared_without_input_scales(tmp_path):
    made = moe(tmp_path / "m", input_scale=True)
    made.drop(r"input_scale")
    assert "none of the 18" in only(made, "input-scale-missing").message


def test_repeated_findings_are_counted_not_listed(tmp_path):
    made = moe(tmp_path / "m", experts=30)
    for expert in range(30):
        made.array(f"model.layers.0.mlp.experts.{expert}.down_proj.weight_scale")[0, 0] = 0x7F
    report = made.check()
    assert report.totals == {"scale-nan": 30} and (report.errors, report.warnings) == (30, 0)
    assert len(report.findings) == 21
    assert report.findings[-1].message == "and 10 more"


def test_stacked_experts_are_judged_one_by_one(tmp_path):
    made = Made(tmp_path / "m", shards=[{}])
    rng = np.random.default_rng(0)
    for leaf, rows in (("gate_up_proj", 8), ("down_proj", 4)):
        stem = f"model.layers.0.mlp.experts.{leaf}"
        made.add(stem + "_blocks", "U8", rng.integers(0, 256, (2, rows, 2, 16), dtype=np.uint8))
        made.add(stem + "_scales", "U8", rng.integers(110, 125, (2, rows, 2), dtype=np.uint8))
    made.config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
    assert not made.check().findings
    made.array("model.layers.0.mlp.experts.gate_up_proj_scales")[1, 5, 1] = 255
    finding = only(made, "scale-nan")
    assert finding.place.module == "model.layers.0.mlp.experts.1.up_proj"
    assert (finding.place.row, finding.place.block) == (2, 1)
    assert "experts.1.up_proj" in str(finding)
