"""``verify`` of a cast with loss as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from truecast.checkpoint.header import encode_header

Cli = Callable[..., Any]
EXPERTS = "model.layers.{}.mlp.experts.0.{}"


@pytest.fixture
def source(tmp_path: Path, write_checkpoint: Callable[..., Path]) -> Path:
    rng = np.random.default_rng(0)
    tensors = {}
    for layer in range(2):
        for leaf in ("gate_proj", "up_proj", "down_proj"):
            name = EXPERTS.format(layer, leaf)
            tensors[name + ".weight_packed"] = "U8", (128, 64), rng.bytes(128 * 64)
            tensors[name + ".weight_scale"] = "U8", (128, 4), rng.integers(118, 122, 512, dtype=np.uint8).tobytes()
    bits = (rng.standard_normal((128, 128)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    tensors["model.layers.0.self_attn.q_proj.weight"] = "BF16", (128, 128), bits.tobytes()
    config = {"architectures": ["ToyForCausalLM"], "model_type": "toy"}
    return write_checkpoint(tmp_path / "src", {"model-00001-of-00001.safetensors": tensors}, config)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    vector = np.linspace(0, 1, 128, dtype=np.float32)
    header = encode_header(
        [(EXPERTS.format("*", leaf), "F32", (128,)) for leaf in ("down_proj", "gate_proj", "up_proj")], {}
    )
    path = tmp_path / "weights.safetensors"
    path.write_bytes(header + 3 * vector.tobytes())
    return path


def test_the_table_and_the_verdict(source: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out"
    assert cli("convert", source, out, "--to", "w4afp8", "--jobs", 1).code == 0
    outcome = cli("verify", source, out, "--jobs", 1)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].startswith("Loss against the source")
    (row,) = (line.split() for line in lines if line.startswith("model.layers.*.mlp.experts.*.up_proj"))
    assert (row[1], row[5], row[6]) == ("2", "100%", "100%") and 17 < float(row[2]) < 22
    assert any(line.startswith("layers  from ") for line in lines)
    assert sum(int(line.split()[2]) for line in lines if line[:8].strip().endswith("dB") and "#" in line) == 6 * 128
    assert lines[-1].startswith(
        "PASS, WITH LOSS: 6 INT4 and 1 FP8 matrices approximate the source, as the manifest declares;"
    )
    assert (
        "FP8: nearest to the float32 quotient is required; the share is of codes nearest in exact arithmetic" in lines
    )
    rest = outcome.out.lower().replace("in exact arithmetic", "")
    assert "exact" not in rest and "equal" not in rest and "half block" not in rest
    assert "declares; 7 matrices, 114,688 elements compared; 0 tensors byte for byte;" in lines[-1]
    assert [line for line in lines if line != line.rstrip()] == []
    quality = cli("verify", source, out, "--jobs", 1, "--json").json["quality"]
    assert quality["int4"]["groups"] == 6 * 128 and quality["int4"]["unbeaten_share"] == 1
    assert [w["sqnr_db"] for w in quality["worst"]] == sorted(w["sqnr_db"] for w in quality["worst"])


def test_without_a_manifest_the_verdict_claims_nothing(source: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out"
    assert cli("convert", source, out, "--to", "w4afp8", "--dialect", "compressed-tensors", "--jobs", 1).code == 0
    (out / "truecast.json").unlink()
    outcome = cli("verify", source, out, "--jobs", 1)
    assert outcome.code == 0 and "nothing says how the INT4 scales were chosen" in outcome.out
    assert "6 INT4 matrices approximate the source, of which nothing is declared" in outcome.out.splitlines()[-1]


def test_weights(source: Path, weights: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out"
    assert cli("convert", source, out, "--to", "w4afp8", "--weights", weights, "--jobs", 1).code == 0
    with_them = cli("verify", source, out, "--weights", weights, "--jobs", 1)
    assert with_them.code == 0 and "note" not in with_them.out
    without = cli("verify", source, out, "--jobs", 1)
    assert without.code == 0 and "without that file" in without.out
    assert (
        "but without the weights file the choice of INT4 scales is not checked; 7 mat" in without.out.splitlines()[-1]
    )
    (row,) = (line.split() for line in without.out.splitlines() if line.startswith("all INT4"))
    assert (len(row), row[6], row[7]) == (8, "100%", row[7]) and row[7].isdigit(), "nothing under 'unbeaten'"
    quality = cli("verify", source, out, "--jobs", 1, "--json").json["quality"]
    assert quality["int4"]["unbeaten_share"] is quality["int4"]["unbeaten"] is None
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    other = cli("verify", source, out, "--weights", weights, "--jobs", 1)
    assert other.code == 2 and "not the file by which" in other.err
    weights.write_bytes(b"")
    assert cli("verify", source, out, "--weights", weights, "--jobs", 1).code == 2
    assert cli("verify", source, out, "--weights", tmp_path / "absent", "--jobs", 1).code == 2
    assert cli("verify", out, "--against", weights, "--weights", weights).code == 2


@pytest.mark.parametrize("to", ["w4afp8", "nvfp4"])
def test_weights_that_nothing_was_chosen_by(source: Path, weights: Path, tmp_path: Path, cli: Cli, to: str) -> None:
    """They are no reason to check less, nor to count errors by them."""
    out = tmp_path / "out"
    assert cli("convert", source, out, "--to", to, "--jobs", 1).code == 0
    plain, given = (
        cli("verify", source, out, "--jobs", 1),
        cli("verify", source, out, "--weights", weights, "--jobs", 1),
    )
    note = f"note  {weights} is not used: nothing says that INT4 scales were chosen by weights\n"
    assert given.code == 0 and given.out == note + plain.out


@pytest.mark.parametrize("options", ["", "--weights FILE", "--method amax", "--to nvfp4", "--to fp8", "--to bf16"])
def test_convert_tells_the_outcome_and_how_to_prove_it(
    source: Path, weights: Path, tmp_path: Path, cli: Cli, options: str
) -> None:
    told = {
        "": ("INT4: 768 groups of 128, SQNR ", "scales: least squared error; FP8: 1 module, SQNR "),
        "--weights FILE": ("INT4: 768 groups", "scales: least weighted squared error; FP8: 1 module"),
        "--method amax": ("INT4: 768 groups", "scales: largest magnitude to 7; FP8: 1 module"),
        "--to nvfp4": ("exact: all 98,304 elements, 6,144 half blocks, 0 of them with shifted codes", ""),
        "--to fp8": ("exact: all 98,304 elements", ""),
        "--to bf16": ("exact: all 98,304 elements", ""),
    }[options]
    chosen = options.replace("FILE", str(weights)).split()
    outcome = cli("convert", source, tmp_path / "out", "--to", "w4afp8", *chosen, "--jobs", 1)
    assert outcome.code == 0
    line = outcome.out.splitlines()[1]
    assert line.startswith(told[0]) and told[1] in line
    proof = f"Prove it: truecast verify {source} {tmp_path / 'out'}"
    assert outcome.out.splitlines()[-1] == proof + (f" --weights {weights}" if "FILE" in options else "")


def test_plan_of_another_dialect_needs_no_scan(source: Path, tmp_path: Path, cli: Cli) -> None:
    there = tmp_path / "there"
    assert cli("convert", source, there, "--to", "w4afp8", "--dialect", "compressed-tensors", "--jobs", 1).code == 0
    for scan in ((), ("--scan",)):
        kept = cli("plan", there, "--to", "w4afp8", "--attention", "bf16", *scan, "--jobs", 1)
        assert kept.out.splitlines()[-1] == "exact?    yes: codes and scales change their form only"
        cast = cli("plan", there, "--to", "w4afp8", *scan, "--jobs", 1)
        assert "exact?    no: 1 BF16 module rounded to FP8; INT4 codes and scales change their form only" in cast.out
    assert (
        "exact?    no: INT4 groups are quantized anew, 1 BF16 module rounded to FP8\n"
        in cli("plan", source, "--to", "w4afp8").out
    )
    told = cli("convert", there, tmp_path / "back", "--to", "w4afp8", "--attention", "bf16", "--jobs", 1)
    assert told.out.splitlines()[1] == "exact: codes and scales changed their form only"


def test_a_contradiction_is_exit_1(source: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out"
    assert cli("convert", source, out, "--to", "w4afp8", "--method", "amax", "--jobs", 1).code == 0
    document = json.loads((out / "truecast.json").read_text())
    assert document["int4"]["method"] == "amax"
    path = out / "model-00001-of-00001.safetensors"
    data = bytearray(path.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    start, _ = header[EXPERTS.format(1, "up_proj") + ".weight"]["data_offsets"]
    data[8 + int.from_bytes(data[:8], "little") + start] ^= 0x04
    path.write_bytes(data)
    outcome = cli("verify", source, out, "--jobs", 1)
    assert outcome.code == 1 and "the code is not the nearest one" in outcome.out.splitlines()[0]
