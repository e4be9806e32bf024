"""Each verb as a user sees it: exit code, stdout and stderr together; text, ``--json``, ``--quiet``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from truecast.cli import output

Cli = Callable[..., Any]

INSPECT = """\
class                                          dtype  shape  tensors  bytes
lm_head.weight                                 BF16   8x8          1    128
model.embed_tokens.weight                      BF16   8x8          1    128
model.layers.*.mlp.experts.*.w1.weight_packed  U8     4x32         2    256
model.layers.*.mlp.experts.*.w1.weight_scale   U8     4x2          2     16
model.layers.*.mlp.experts.*.w2.weight_packed  U8     64x16        2  2,048
model.layers.*.mlp.experts.*.w2.weight_scale   U8     64x1         2    128
model.layers.*.mlp.experts.*.w3.weight_packed  U8     4x32         2    256
model.layers.*.mlp.experts.*.w3.weight_scale   U8     4x2          2     16
model.layers.*.mlp.gate.weight                 BF16   2x8          2     64

family    generic
layout    mxfp4-compressed-tensors: 6 matrices
shards    3 (4.74 kB on disk)
tensors   16
bytes     3,040
"""

PLAN = """\
cast
class                            from                      to              matrices  elements
model.layers.*.mlp.experts.*.w1  mxfp4-compressed-tensors  nvfp4-modelopt         2       512
model.layers.*.mlp.experts.*.w2  mxfp4-compressed-tensors  nvfp4-modelopt         2     4,096
model.layers.*.mlp.experts.*.w3  mxfp4-compressed-tensors  nvfp4-modelopt         2       512

copied byte for byte
class                           dtype  tensors  bytes
lm_head.weight                  BF16         1    128
model.embed_tokens.weight       BF16         1    128
model.layers.*.mlp.gate.weight  BF16         2     64

family    generic, 4 groups with a global scale of their own
read      3 shards of 4.74 kB, 16 tensors
write     3 shards of 5.54 kB, 22 tensors; 1 shard copied whole
exact?    {}
"""


def test_inspect(tiny: Path, cli: Cli) -> None:
    outcome = cli("inspect", tiny)
    assert (outcome.code, outcome.out, outcome.err) == (0, INSPECT, "")
    assert cli("inspect", tiny, "--quiet") == outcome


def test_inspect_json(tiny: Path, cli: Cli) -> None:
    outcome = cli("inspect", tiny, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.json
    fingerprint = document.pop("fingerprint")
    assert len(fingerprint) == 64
    classes = document.pop("classes")
    assert document == {
        "schema": "truecast.inspect/1",
        "source": str(tiny),
        "family": "generic",
        "shards": 3,
        "tensors": 16,
        "tensor_bytes": 3040,
        "file_bytes": 4744,
        "matrices": {"mxfp4-compressed-tensors": 6},
    }
    assert classes[0] == {"class": "lm_head.weight", "dtype": "BF16", "shape": [8, 8], "tensors": 1, "bytes": 128}


def test_plan(tiny: Path, cli: Cli) -> None:
    outcome = cli("plan", tiny, "--to", "nvfp4")
    assert (outcome.code, outcome.out, outcome.err) == (0, PLAN.format("not known from headers; add --scan"), "")
    for jobs in (1, 2):
        outcome = cli("plan", tiny, "--to", "nvfp4", "--scan", "--jobs", jobs)
        assert (outcome.code, outcome.out, outcome.err) == (0, PLAN.format("yes, all 320 half blocks"), "")


def test_plan_json(tiny: Path, cli: Cli) -> None:
    outcome = cli("plan", tiny, "--to", "nvfp4", "--scan", "--json", "--jobs", 1)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json["schema"] == "truecast.plan/1"
    assert outcome.json["scan"] == {
        "exact": True,
        "half_blocks": 320,
        "inexact_half_blocks": 0,
        "inexact_matrices": {},
        "near_overflow": [],
        "global_exponents": {"-12": 6},
    }
    assert "scan" not in cli("plan", tiny, "--to", "nvfp4", "--json").json


def test_convert(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out with space"
    outcome = cli("convert", tiny, out, "--to", "nvfp4", "--jobs", 1)
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file() and ".truecast" not in p.parts)
    shards = sum(p.stat().st_size for p in out.glob("*.safetensors"))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == (
        f"{out}: nvfp4-modelopt, 22 tensors, 3 shards of {output.gigabytes(shards)},"
        f" folder {output.gigabytes(size)}\n"
        "exact: all 5,120 elements, 320 half blocks, 0 of them with shifted codes\n\n"
        f"Prove it: truecast verify {tiny} '{out}'\n"
    )
    assert cli("convert", tiny, out, "--to", "nvfp4", "--quiet") == outcome  # again, and quiet


def test_convert_json(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    arguments = ("convert", tiny, tmp_path / "out", "--to", "nvfp4", "--json")
    outcome = cli(*arguments, "--jobs", 2)
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.json
    assert (document["schema"], document["files"]) == ("truecast.convert/1", 9)
    assert document["manifest"]["target"]["layout"] == "nvfp4-modelopt"
    assert cli(*arguments) == outcome


def test_convert_to_the_other_formats(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    for options in ("--to nvfp4 --dialect compressed-tensors", "--to mxfp4 --dialect deepseek", "--to bf16"):
        out = tmp_path / options.replace(" ", "")
        outcome = cli("convert", tiny, out, *options.split(), "--jobs", 1)
        assert (outcome.code, outcome.err) == (0, "")
        assert cli("inspect", out).code == 0


@pytest.mark.parametrize("verb", ["plan", "convert"])
def test_progress_goes_to_stderr(
    verb: str, tiny: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "REPORT_EVERY_S", 0.0)
    arguments = ["plan", tiny, "--scan"] if verb == "plan" else ["convert", tiny, tmp_path / "out"]
    arguments += ["--to", "nvfp4", "--jobs", "1"]
    outcome = cli(*arguments, "--json")
    assert outcome.code == 0
    assert outcome.json["schema"] == f"truecast.{verb}/1"
    lines = outcome.err.splitlines()
    assert re.fullmatch(r"scan: .* of 2.56 kB", lines[0])
    assert "scan: 2.56 kB of 2.56 kB" in lines
    if verb == "convert":
        assert lines[-1] == "write: 5.54 kB of 5.54 kB"
        arguments[2] = tmp_path / "out2"
    assert cli(*arguments, "--quiet").err == ""
