"""transformers itself loads the SmolLM2 outputs: BF16 directly, NVFP4 through compressed-tensors, with the same values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from examples.smollm2.make import make
from truecast.convert import Target, convert

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    make(folder / "source")
    convert(folder / "source", folder / "bf16", Target("bf16"))
    convert(folder / "source", folder / "nvfp4", Target("nvfp4", "compressed-tensors"))
    for name in ("source", "bf16", "nvfp4"):  # two layers of the thirty say as much, in a fraction of the time
        config = json.loads((folder / name / "config.json").read_text())
        (folder / name / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    return folder


def load(folder: Path) -> torch.nn.Module:
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.eval()


def test_same_logits_from_all_three(smollm2: Path) -> None:
    ids = torch.arange(1, 33)[None]
    with torch.no_grad():
        logits = {name: load(smollm2 / name)(ids).logits for name in ("source", "nvfp4", "bf16")}
    assert torch.isfinite(logits["bf16"]).all()
    assert torch.equal(logits["nvfp4"], logits["bf16"])
    assert torch.equal(logits["source"], logits["bf16"])
