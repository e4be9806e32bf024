"""Which checkpoint is served, under which name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.serve.launch.conftest import Released
from truecast.errors import InputError, UsageError
from truecast.serve.launch.checkpoint import fault_notes, path_settings
from truecast.serve.launch.plan import plan_launch
from truecast.serve.topology import read_topology


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("/data/K3", ["--model-path", "/data/K3"]),
        ("K3", ["--model-path", str(Path.cwd() / "K3")]),
        ("hf://moonshotai/Kimi-K3", ["--model-path", "moonshotai/Kimi-K3"]),
        ("hf://moonshotai/Kimi-K3@v1", ["--model-path", "moonshotai/Kimi-K3", "--revision", "v1"]),
        ("s3://bucket/K3", ["--model-path", "s3://bucket/K3"]),
    ],
)
def test_place(released: Released, location: str, words: list[str]) -> None:
    found = path_settings(replace(released.mxfp4, location=location))
    assert [word for setting in found for word in (setting.name, setting.value)] == words


def test_a_place_that_sglang_may_not_read_is_told(released: Released) -> None:
    assert "not known here" in fault_notes(replace(released.mxfp4, location="https://host/K3"))[0]
    assert not fault_notes(released.mxfp4)
    faulty = replace(released.mxfp4, problems=(InputError("has no scale", where="experts.3.w1"),))
    assert "has 1 faults, the first: experts.3.w1: has no scale" in fault_notes(faulty)[0]


@pytest.mark.parametrize(("layers", "name"), [(93, "moonshotai/Kimi-K3"), (5, "K3-w-colon")])
def test_name(released: Released, layers: int, name: str) -> None:
    text = {**released.mxfp4.text, "num_hidden_layers": layers}
    model = replace(released.mxfp4, location="/data/-K3 w:colon", text=text)
    found = {s.name: s.value for s in plan_launch(model, read_topology("h200:2x8")).arguments}
    assert found["--served-model-name"] == name  # SGLang takes none with a colon


def test_no_such_profile(released: Released) -> None:
    with pytest.raises(UsageError, match="no such profile: fast; one of throughput, latency"):
        plan_launch(released.mxfp4, read_topology("h200:2x8"), profile="fast")
