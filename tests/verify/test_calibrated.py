"""verify on outputs that were calibrated: what it proves with the file and without, and that damage is always found."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_code import sign
from test_flips import flipped, regions

from tests.convert.calibrations import COLS, MODULES, make, statistics
from tests.convert.w4afp8_sources import experts, one_file
from truecast.cli.main import main
from truecast.convert import Target, convert
from truecast.errors import InputError
from truecast.verify import Report, verify

ROUNDINGS = ("data-free", "diagonal", "gptq")
FLIPS_A_REGION = 6


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source, its calibration, and one output for each rounding."""
    root = tmp_path_factory.mktemp("calibrated")
    found = {"source": one_file(root / "source", experts(16, COLS))}
    found["calibration"] = make(root / "calibration.safetensors", found["source"])
    for rounding in ROUNDINGS:
        target = Target("w4afp8", calibration=found["calibration"], rounding=rounding)
        convert(found["source"], root / rounding, target)
        found[rounding] = root / rounding
    return found


def judged(pairs: dict[str, Path], rounding: str, *, calibration: bool = True) -> Report:
    return verify(pairs["source"], pairs[rounding], calibration=pairs["calibration"] if calibration else None)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_it_passes_and_says_what_it_does_not_claim(pairs: dict[str, Path], rounding: str) -> None:
    with_it, without = (judged(pairs, rounding, calibration=given) for given in (True, False))
    assert with_it.failures.kept == without.failures.kept == []
    assert any("activation scales come from a calibration" in note for note in without.notes)
    assert not any("activation scales" in note for note in with_it.notes)
    share = with_it.document()["quality"]["int4"]["nearest_share"]
    if rounding == "gptq":
        assert share < 0.9
        assert any("chosen by GPTQ" in note for note in with_it.notes)
    else:
        assert share == 1 and with_it.notes == []
    assert bool(without.scales_unchecked) == (rounding == "diagonal")
    assert with_it.scales_unchecked == ""


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_flipped_bit_is_found(pairs: dict[str, Path], rounding: str) -> None:
    rng = random.Random(rounding)
    for region in regions(pairs[rounding]):
        for _ in range(FLIPS_A_REGION):
            place, named = flipped(pairs["source"], pairs[rounding], region, rng)
            assert named, place
    assert judged(pairs, rounding).ok


def altered(pairs: dict[str, Path], rounding: str, out: Path, name: str, value: np.ndarray) -> Path:
    """A copy with one tensor changed, and a manifest whose hashes agree with that."""
    out.mkdir()
    for path in pairs[rounding].glob("*.*"):
        if path.is_file():
            (out / path.name).write_bytes(path.read_bytes())
    shard = out / "model.safetensors"
    raw, stored = bytearray(shard.read_bytes()), load_file(shard)
    at = bytes(raw).index(stored[name].tobytes(), 8 + int.from_bytes(raw[:8], "little"))
    raw[at : at + value.nbytes] = value.astype(stored[name].dtype).tobytes()
    shard.write_bytes(raw)
    sign(out)
    return out


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_an_activation_scale_that_the_file_does_not_give(pairs: dict[str, Path], rounding: str, tmp_path: Path) -> None:
    name = f"{MODULES[0]}.input_scale"
    other = np.array(np.nextafter(np.float32(statistics(0).amax) / np.float32(448), np.float32(0)))
    out = altered(pairs, rounding, tmp_path / "out", name, other)
    report = verify(pairs["source"], out, calibration=pairs["calibration"])
    assert [(f.kind, f.tensor) for f in report.failures.kept] == [("input_scale", name)]
    assert verify(pairs["source"], out).ok  # legal, and without the file no more is claimed
    zero = altered(pairs, rounding, tmp_path / "zero", name, np.zeros((), np.float32))
    assert [f.kind for f in verify(pairs["source"], zero).failures.kept] == ["input_scale"]


def test_codes_that_are_not_nearest_are_no_excuse(pairs: dict[str, Path], tmp_path: Path) -> None:
    """Under GPTQ codes may lie off the nearest; figures that the manifest states, and approximation, still hold."""
    name = f"{MODULES[0]}.weight"
    codes = load_file(pairs["gptq"] / "model.safetensors")[name].copy()
    codes[0, 0] ^= 0x11
    report = verify(pairs["source"], altered(pairs, "gptq", tmp_path / "one", name, codes))
    assert {f.kind for f in report.failures.kept} == {"figures"}
    codes[:] = 0
    report = verify(pairs["source"], altered(pairs, "gptq", tmp_path / "zeros", name, codes))
    assert "is no approximation of the source" in " ".join(f.message for f in report.failures.kept)


def test_a_scale_that_the_second_moments_do_not_give(pairs: dict[str, Path], tmp_path: Path) -> None:
    """Data-free scales under a manifest that says diagonal: their error is not the least by these weights."""
    out = tmp_path / "out"
    convert(pairs["source"], out, Target("w4afp8", calibration=pairs["calibration"], rounding="data-free"))
    plain = json.loads((out / "truecast.json").read_bytes())["int4"]
    taken = plain["calibration"] | {"second_moments": 3}
    weights = {key: taken[key] for key in ("file", "sha256")}
    sign(out, int4=plain | {"rounding": "diagonal", "weights": weights, "calibration": taken})
    kinds = {f.message for f in verify(pairs["source"], out, calibration=pairs["calibration"]).failures.kept}
    assert any("neighbouring BF16 scale has a smaller error" in message for message in kinds)


def test_another_file(pairs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "other.safetensors", pairs["source"], gate_proj=statistics(9))
    with pytest.raises(InputError, match="is not the calibration that was used"):
        verify(pairs["source"], pairs["gptq"], calibration=path)
    save_file({"x": np.ones(1, np.float32)}, path)
    words = ["verify", str(pairs["source"]), str(pairs["gptq"]), "--calibration", str(path), "--quiet"]
    assert main(words) == 2
    assert "is no calibration" in capsys.readouterr().err


def test_a_calibration_that_nothing_was_taken_of(pairs: dict[str, Path], tmp_path: Path) -> None:
    convert(pairs["source"], tmp_path / "out", Target("w4afp8"))
    report = verify(pairs["source"], tmp_path / "out", calibration=pairs["calibration"])
    assert report.ok and any("is not used" in note for note in report.notes)
