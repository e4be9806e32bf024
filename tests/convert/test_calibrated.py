"""``--calibration`` and ``--rounding``: what is taken, what is written, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.convert.calibrations import COLS, MODULES, make, statistics
from tests.convert.decoding import load
from tests.convert.w4afp8_sources import EXPERT, LEAVES, experts, one_file
from truecast.casts import gptq, int4
from truecast.cli.main import main
from truecast.convert import Target, convert
from truecast.errors import InputError, RefusedError, UsageError
from truecast.formats import int4 as codes_of
from truecast.report.card import render_card


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_file(tmp_path_factory.mktemp("calibrated") / "source", experts(32, COLS))


@pytest.fixture(scope="module")
def calibration(source: Path) -> Path:
    return make(source.with_name("calibration.safetensors"), source)


def made(source: Path, out: Path, **target: object) -> dict[str, np.ndarray]:
    convert(source, out, Target("w4afp8", **target), card=render_card)
    return {name: stored.data for name, stored in load(out).items()}


def values(out: Path, module: str) -> np.ndarray:
    stored = load_file(out / "model.safetensors")
    codes = codes_of.decode_twos_complement(
        np.stack([(c := stored[f"{module}.weight"].view(np.uint8)) & 15, c >> 4], -1).reshape(len(c), -1)
    )
    scales = stored[f"{module}.weight_scale_inv"]
    wide = scales.view(ml_dtypes.bfloat16).astype(np.float64)
    return codes * np.repeat(wide, 128, axis=1)


def weights(source: Path, module: str) -> tuple[np.ndarray, np.ndarray]:
    stored = load_file(source / "model.safetensors")
    return stored[f"{module}.weight_packed"], stored[f"{module}.weight_scale"]


def load_notes(out: Path) -> list[str]:
    notes: list[str] = json.loads((out / "truecast.json").read_bytes())["notes"]
    return notes


def test_without_hessians_it_gives_activation_scales_and_nothing_else(source: Path, tmp_path: Path) -> None:
    leaves = ("gate_proj", "up_proj", "down_proj")
    bare = {leaf: statistics(i, hessian=False) for i, leaf in enumerate(leaves)}
    calibration = make(tmp_path / "calibration.safetensors", source, **bare)
    convert(source, tmp_path / "plain", Target("w4afp8"))
    manifest = convert(source, tmp_path / "out", Target("w4afp8", calibration=calibration), card=render_card)
    plain, out = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "out"))
    for i, module in enumerate(MODULES):
        expected = np.float32(np.float32(statistics(i).amax) / np.float32(448))
        assert out[f"{module}.input_scale"] == expected != plain[f"{module}.input_scale"]
    same = [name for name in out if not name.endswith(".input_scale")]
    assert all((out[name] == plain[name]).all() for name in same)
    assert manifest["target"]["activation_scales"] == "calibrated"
    assert any("saturate at 448" in note for note in load_notes(tmp_path / "plain"))
    assert not any("1.0" in note for note in manifest["notes"]), "none is 1.0"
    taken = manifest["int4"]["calibration"]
    assert (taken["file"], taken["input_scales"], taken["hessians"], taken["tokens"]) == (calibration.name, 3, 0, 512)
    assert manifest["int4"]["rounding"] == "data-free" and manifest["int4"]["weights"] is None
    card = (tmp_path / "out" / "README.md").read_text()
    assert "--calibration calibration.safetensors" in card and "over 448" in card


@pytest.mark.parametrize("dialect", ["sglang", "compressed-tensors"])
@pytest.mark.parametrize("rounding", ["diagonal", "gptq"])
def test_rounding_is_that_of_the_cast(
    source: Path, calibration: Path, tmp_path: Path, rounding: str, dialect: str
) -> None:
    target = Target("w4afp8", dialect, calibration=calibration, rounding=rounding)
    manifest = convert(source, tmp_path / "out", target, card=render_card)
    for i, module in enumerate(MODULES):
        packed, scales, found = *weights(source, module), statistics(i)
        wanted = (
            gptq.quantize(packed, scales, found.hessian)
            if rounding == "gptq"
            else int4.quantize(packed, scales, "exact", int4.importance(found.second_moment))
        )
        figures = manifest["int4"]["matrices"][module]
        assert figures["squared_error"] == wanted.squared_error
        if dialect == "sglang":
            stored = load_file(tmp_path / "out" / "model.safetensors")
            assert (stored[f"{module}.weight"].view(np.uint8) == wanted.codes).all()
    assert manifest["int4"]["calibration"]["hessians"] == (3 if rounding == "gptq" else 0)
    assert manifest["int4"]["calibration"]["input_scales"] == (3 if dialect == "sglang" else 0)


def test_hessians_are_used_unless_told_otherwise(source: Path, calibration: Path, tmp_path: Path) -> None:
    by_default = convert(source, tmp_path / "default", Target("w4afp8", calibration=calibration))
    asked = convert(source, tmp_path / "asked", Target("w4afp8", calibration=calibration, rounding="gptq"))
    assert by_default == asked and asked["int4"]["rounding"] == "gptq"
    left = convert(source, tmp_path / "left", Target("w4afp8", calibration=calibration, rounding="data-free"))
    assert left["int4"]["rounding"] == "data-free"
    signed = convert(source, tmp_path / "signed", Target("w4afp8", calibration=calibration, method="signed"))
    assert (signed["int4"]["rounding"], signed["int4"]["method"]) == ("data-free", "signed")


def test_gptq_loses_less_of_the_outputs(source: Path, calibration: Path, tmp_path: Path) -> None:
    errors = {}
    for rounding in ("data-free", "diagonal", "gptq"):
        convert(source, tmp_path / rounding, Target("w4afp8", calibration=calibration, rounding=rounding))
        off = [gptq.decode(*weights(source, m)) - values(tmp_path / rounding, m) for m in MODULES]
        hessians = [statistics(i).hessian.astype(np.float64) for i in range(3)]
        errors[rounding] = sum(np.einsum("ij,jk,ik->", e, h, e) for e, h in zip(off, hessians, strict=True))
    assert errors["gptq"] < 0.4 * errors["data-free"]
    assert errors["diagonal"] < 0.9 * errors["data-free"]


def test_a_matrix_without_a_hessian_is_rounded_by_its_diagonal(source: Path, tmp_path: Path) -> None:
    path = make(tmp_path / "c.safetensors", source, up_proj=statistics(1, hessian=False))
    manifest = convert(source, tmp_path / "out", Target("w4afp8", calibration=path, rounding="gptq"))
    assert manifest["int4"]["calibration"]["hessians"] == 2 and manifest["int4"]["calibration"]["second_moments"] == 1
    packed, scales = weights(source, MODULES[1])
    wanted = int4.quantize(packed, scales, "exact", int4.importance(statistics(1).second_moment))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert (stored[f"{MODULES[1]}.weight"].view(np.uint8) == wanted.codes).all()


def test_the_same_bytes_again_and_other_options_refused(source: Path, calibration: Path, tmp_path: Path) -> None:
    target = Target("w4afp8", calibration=calibration, rounding="gptq")
    for name in ("a", "b"):
        convert(source, tmp_path / name, target)
    for path in (tmp_path / "a").glob("*.*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    with pytest.raises(RefusedError, match="--rounding gptq there, diagonal here"):
        (tmp_path / "a" / "truecast.json").unlink()
        convert(source, tmp_path / "a", replace(target, rounding="diagonal"))


def hessian_of(change) -> object:
    found = statistics(0)
    return replace(found, hessian=change(found.hessian.copy()))


def spoil(where: tuple[int, int], value: float):
    def change(hessian: np.ndarray) -> np.ndarray:
        hessian[where] = value
        return hessian

    return change


@pytest.mark.parametrize(
    ("rounding", "changed", "part", "told"),
    [
        ("gptq", hessian_of(spoil((3, 4), np.nan)), "input_hessian", "is nan at 3, 4"),
        ("gptq", hessian_of(spoil((3, 4), 1e6)), "input_hessian", "is not symmetric"),
        ("gptq", hessian_of(lambda h: -h), "input_hessian", "is negative at channel 0"),
        (
            "gptq",
            hessian_of(lambda h: np.where(np.eye(COLS) > 0, h, 3 * h)),
            "input_hessian",
            "semidefinite",
        ),
        ("gptq", hessian_of(lambda h: h[:128, :128]), "input_hessian", r"should be F32 \[256, 256\]"),
        (
            "diagonal",
            replace(statistics(0), second_moment=np.ones(128, np.float32)),
            "input_second_moment",
            "should be",
        ),
        (
            "diagonal",
            replace(statistics(0), second_moment=np.full(COLS, -1, np.float32)),
            "input_second_moment",
            "negative",
        ),
        ("data-free", replace(statistics(0), amax=np.inf), "input_amax", "must be finite"),
        ("data-free", replace(statistics(0), amax=-1.0), "input_amax", "not negative"),
    ],
)
def test_what_is_no_calibration_is_refused_by_file_and_tensor(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rounding: str, changed, part: str, told: str
) -> None:
    path = make(tmp_path / "c.safetensors", source, gate_proj=changed)
    out = tmp_path / "out"
    with pytest.raises(InputError, match=told) as error:
        convert(source, out, Target("w4afp8", calibration=path, rounding=rounding))
    assert error.value.where == f"{EXPERT}gate_proj.{part} in {path}"
    words = ["convert", str(source), str(out), "--to", "w4afp8", "--calibration", str(path), "--rounding", rounding]
    assert main([*words, "--jobs", "1", "--quiet"]) == 2
    assert str(path) in capsys.readouterr().err


def test_another_checkpoints_calibration(source: Path, tmp_path: Path) -> None:
    other = one_file(tmp_path / "other", experts(32, COLS), {"model_type": "other"})
    path = make(tmp_path / "c.safetensors", other)
    with pytest.raises(InputError, match="made on another checkpoint"):
        convert(source, tmp_path / "out", Target("w4afp8", calibration=path))
    assert not (tmp_path / "out").exists()


def test_other_weights_of_the_same_shapes(tmp_path: Path) -> None:
    """Two steps of one training have the same headers: their fingerprints are equal."""
    source = one_file(tmp_path / "step", experts(32, COLS), {"model_type": "kimi_k3"})
    path = make(tmp_path / "c.safetensors", source)
    shard = next(source.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(InputError, match="made on other weights of the same names and shapes"):
        convert(source, tmp_path / "out", Target("w4afp8", calibration=path))


def test_no_hessian_at_all(source: Path, tmp_path: Path) -> None:
    path = make(tmp_path / "c.safetensors", source, **{leaf: statistics(0, hessian=False) for leaf in LEAVES})
    with pytest.raises(InputError, match="has no Hessian"):
        convert(source, tmp_path / "out", Target("w4afp8", calibration=path, rounding="gptq"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"format": "nvfp4", "calibration": Path("c")}, "--calibration makes no sense with --to nvfp4"),
        ({"format": "nvfp4", "rounding": "gptq"}, "--rounding makes no sense"),
        ({"rounding": "gptq"}, "needs --calibration"),
        ({"rounding": "best"}, "there is no rounding"),
        ({"rounding": "gptq", "calibration": Path("c"), "weights": Path("w")}, "leave out --weights"),
        ({"rounding": "gptq", "calibration": Path("c"), "method": "amax"}, "needs --method exact"),
        (
            {"dialect": "compressed-tensors", "calibration": Path("c"), "rounding": "data-free"},
            "stores no activation scales",
        ),
    ],
)
def test_options_that_do_not_fit(source: Path, tmp_path: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        convert(source, tmp_path / "out", Target(**{"format": "w4afp8", **options}))
