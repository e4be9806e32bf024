"""Static scales as a kernel makes them of a bank's, and which module gets which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from truecast.audit import rounding
from truecast.audit.activations import emulation, input_scales
from truecast.checkpoint.source import Checkpoint, open_checkpoint
from truecast.errors import InputError
from truecast.layouts.recognise import recognise

SCALES = {"0.w1": 0.5, "0.w3": 2.0, "0.w2": 3.0, "1.w1": 0.25, "1.w2": 0.125}
"""By expert and projection; w3 of the second expert has none."""

BANK = "model.layers.0.mlp.experts"


def checkpoint(folder: Path, write: Callable[..., Path], scales: dict[str, float]) -> Checkpoint:
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for expert in range(2):
        for projection in ("w1", "w2", "w3"):
            name = f"{BANK}.{expert}.{projection}"
            tensors[f"{name}.weight"] = ("I8", (4, 64), bytes(256))
            tensors[f"{name}.weight_scale_inv"] = ("F32", (4, 1), np.ones(4, np.float32).tobytes())
            if f"{expert}.{projection}" in scales:
                value = np.float32(scales[f"{expert}.{projection}"])
                tensors[f"{name}.input_scale"] = ("F32", (1,), value.tobytes())
    return open_checkpoint(write(folder, {"model.safetensors": tensors}, {"model_type": "toy"}))


def test_a_bank_shares_its_largest_scale_and_an_absent_one_is_1(
    tmp_path: Path, write_checkpoint: Callable[..., Path]
) -> None:
    found = checkpoint(tmp_path / "c", write_checkpoint, SCALES)
    matrices = recognise(found.tensors).matrices.values()
    scales = input_scales("fp8-tensor", found, matrices)
    assert scales == {f"{BANK}.{e}.{p}": 3.0 if p == "w2" else 2.0 for e in range(2) for p in ("w1", "w2", "w3")}
    assert input_scales("fp8-token", found, matrices) == input_scales("nvfp4", found, matrices) == {}
    small = checkpoint(tmp_path / "small", write_checkpoint, {"0.w1": 0.5})
    found_small = input_scales("fp8-tensor", small, recognise(small.tensors).matrices.values())
    assert found_small == {f"{BANK}.{e}.{p}": 1.0 for e in range(2) for p in ("w1", "w3")}


def test_the_emulation_uses_them(tmp_path: Path, write_checkpoint: Callable[..., Path]) -> None:
    found = checkpoint(tmp_path / "c", write_checkpoint, SCALES)
    taps = emulation("fp8-tensor", "fp8", found, recognise(found.tensors).matrices.values())
    x = torch.randn(5, 64) * 500
    own = torch.tensor(0.25)  # what the module itself stores is not what the kernel uses
    assert torch.equal(taps.input(f"{BANK}.1.w1", x, own), rounding.fp8_tensor(x, 2.0))
    assert torch.equal(taps.input("model.layers.0.self_attn.q", x, None), rounding.fp8_token(x))
    assert torch.equal(taps.kv(0, x), rounding.e4m3(x))
    assert taps.kv(0, x).abs().max() == 448
    assert taps.input(f"{BANK}.1.w1", x.bfloat16(), None).dtype == torch.bfloat16


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused(tmp_path: Path, write_checkpoint: Callable[..., Path], value: float) -> None:
    found = checkpoint(tmp_path / "c", write_checkpoint, {**SCALES, "1.w2": value})
    with pytest.raises(InputError, match=r"1\.w2\.input_scale"):
        emulation("fp8-tensor", "none", found, recognise(found.tensors).matrices.values())


def test_without_any_scale_static_emulation_is_refused(tmp_path: Path, write_checkpoint: Callable[..., Path]) -> None:
    found = checkpoint(tmp_path / "c", write_checkpoint, {})
    with pytest.raises(InputError, match="stores no input_scale"):
        emulation("fp8-tensor", "none", found, recognise(found.tensors).matrices.values())
