"""The loading rule in two transformers: with it the converted folder loads and runs, without it it does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.peers.kimi_linear_checkpoint import HEADS, LAYERS, WIDTH, make
from truecast.convert import Target, convert

TOLD = "has 16 values for 2 heads, and those beyond are not all zero"
VERSIONS = ("4.56.2", "5.17")
SPLIT = {"model.embed_tokens": "cpu", "lm_head": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
LOADED = {
    "plain": {},
    "low_cpu_mem_usage": {"low_cpu_mem_usage": True},
    "not low_cpu_mem_usage": {"low_cpu_mem_usage": False},
    "device_map": {"device_map": "cpu"},
    "offloaded to disk": {"device_map": SPLIT},
}
"""Ways to load the folder that has the rule: options of from_pretrained."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Outputs of ``convert``: with the rule, a tail that is not zero, without the rule, and so on."""
    root = tmp_path_factory.mktemp("a_log")
    made = {
        "fixed": convert_to_bf16(make(root / "source")),
        "tail": convert_to_bf16(make(root / "tail", tail=2.0**-100)),
        "unfixed": convert_to_bf16(root / "source", root / "unfixed", fix_code=False),
        "wide": convert_to_bf16(make(root / "wide", wide=True), fix_code=False),
        "wide, fixed": convert_to_bf16(root / "wide", root / "wide, fixed"),
        "nested": convert_to_bf16(make(root / "nested", nested=True)),
        "short": convert_to_bf16(make(root / "short", length=HEADS)),
    }
    quantized = json.loads((made["fixed"] / "config.json").read_text())
    quantized["quantization_config"] = NOTHING_QUANTIZED
    for name in ("fixed", "tail"):
        folder = root / f"{name}, quantizer"
        shutil.copytree(made[name], folder)
        (folder / "config.json").write_text(json.dumps(quantized))
        made[folder.name] = folder
    return made


NOTHING_QUANTIZED = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["re:.*no_such_module"],
            "weights": {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"},
        }
    },
}
"""With a quantizer transformers 5.17 compares no shapes at all."""


def convert_to_bf16(source: Path, out: Path | None = None, *, fix_code: bool = True) -> Path:
    out = out or source.with_name(f"{source.name}-out")
    convert(source, out, Target("bf16", fix_code=fix_code))
    return out


@pytest.fixture(scope="module", params=VERSIONS)
def loaded(request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path_factory: Any) -> dict[str, Any]:
    """What one transformers makes of each folder, in a process of its own."""
    place = Path(sys.prefix) / "transformers" / request.param
    if not place.is_dir():
        pytest.skip(f"transformers {request.param} is not installed in {place}: make test puts it there")
    scratch = tmp_path_factory.mktemp("scratch")
    jobs = {name: {"folder": str(folders["fixed"]), "options": options} for name, options in LOADED.items()}
    jobs["offloaded to disk"]["options"] = LOADED["offloaded to disk"] | {"offload_folder": str(scratch / "offload")}
    jobs |= {name: {"folder": str(path), "options": {}} for name, path in folders.items()}
    for name in ("fixed, quantizer", "tail, quantizer"):  # which would make it float16 in 4.x, where 2^-100 is zero
        jobs[name]["options"] = {"dtype": "float32"}
    environment = os.environ | {
        "PYTHONPATH": str(place),
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(scratch / "modules"),
        "OMP_NUM_THREADS": "1",
    }
    script = Path(__file__).with_name("load_remote_code.py")
    run = subprocess.run(
        [sys.executable, script], input=json.dumps([*jobs.values()]), env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert said["version"].startswith(request.param)
    return dict(zip(jobs, said["results"], strict=True))


@pytest.mark.parametrize("way", [*LOADED, "nested", "wide, fixed", "fixed, quantizer"])
def test_with_the_rule_it_loads_and_runs(loaded: dict[str, Any], way: str) -> None:
    found = loaded[way]
    assert "error" not in found, found
    assert [*found["A_log"].values()] == [[HEADS]] * LAYERS
    assert found["logits"] == loaded["short"]["logits"]  # a checkpoint that never was longer than its heads
    assert len(set(found["logits"])) > 100


@pytest.mark.parametrize("way", ["tail", "tail, quantizer"])
def test_a_tail_that_is_not_zero_stops_the_loading(loaded: dict[str, Any], way: str) -> None:
    assert loaded[way]["stage"] == "load"
    assert f"A_log of layer 1 {TOLD}" in loaded[way]["error"]


def test_without_the_rule_it_does_not_load(loaded: dict[str, Any]) -> None:
    assert loaded["unfixed"]["stage"] == "load"
    assert "A_log" in loaded["unfixed"]["error"] and "mismatch" in loaded["unfixed"]["error"].lower()


def test_the_early_fix_loads_and_does_not_run(loaded: dict[str, Any]) -> None:
    assert loaded["wide"]["stage"] == "forward"
    assert f"shape '[{HEADS}, 1]' is invalid for input of size {WIDTH}" in loaded["wide"]["error"]
