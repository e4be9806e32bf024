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
    assert "exact" not in outcome.out.lower() and "equal" not in outcome.out.lower()
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
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    other = cli("verify", source, out, "--weights", weights, "--jobs", 1)
    assert other.code == 2 and "not the file by which" in other.err
    weights.write_bytes(b"")
    assert cli("verify", source, out, "--weights", weights, "--jobs", 1).code == 2
    assert cli("verify", source, out, "--weights", tmp_path / "absent", "--jobs", 1).code == 2
    assert cli("verify", out, "--against", weights, "--weights", weights).code == 2


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
