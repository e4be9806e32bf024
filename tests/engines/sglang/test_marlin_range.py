"""How small an output of NVFP4 on Marlin may be before it loses bits: the released constants in the kernel's arithmetic."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.conftest import Release
from tests.engines.sglang.test_nvfp4_twins import DEQUANT, FP4, held
from truecast.formats import e2m1

ROWS, K = 400, 64


@pytest.fixture
def codes(release: Release) -> torch.Tensor:
    """What the released kernel makes of the 16 codes with BF16 activations: its shift and masks, read from its text."""
    text = release.wheel.read(DEQUANT).decode()
    pattern = r"dequant<nv_bfloat162, host::kFE2M1f\.id\(\), true>\(int q, [^{]*\{(.*?)\n\}"
    (body,) = re.findall(pattern, text, re.S)
    (formula,) = set(re.findall(r"Out[12] = (.*);", body))
    constants = {n: int(v, 0) for n, v in re.findall(r"\b(\w+) = (0x\w+|\d+)", body)}
    assert "RIGHT_SHIFT = BF16_EXPONENT - FP4_EXPONENT" in body
    constants["RIGHT_SHIFT"] = constants["BF16_EXPONENT"] - constants["FP4_EXPONENT"]
    bits = [eval(formula, {"q": code << 12, **constants}) & 0xFFFF for code in range(16)]
    return torch.tensor(bits, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)


def test_the_codes_keep_e2m1s_exponent_bias(codes: torch.Tensor) -> None:
    assert codes.double().tolist() == [value * 2.0**-126 for value in e2m1.VALUES]


@pytest.mark.parametrize("down", range(15))
def test_outputs_below_the_global_scale_by_128_lose_bits(release: Release, codes: torch.Tensor, down: int) -> None:
    """Block scale 2**(8 - down), global scale 2**(down - 8): the weights stay. Sums are exact in float32, in either form."""
    assert np.float32(2.0**-140) * np.float32(1) != 0, "float32 subnormals are flushed here"
    scope: dict[str, Any] = {"torch": torch}
    release.cut(FP4, {"nvfp4_marlin_process_global_scale"}, scope)
    scale = held(release, torch.bfloat16)[(15 - down) << 3] * 2.0**7  # the byte of 2**(8 - down), as the kernel has it
    factor = scope["nvfp4_marlin_process_global_scale"](torch.tensor(2.0 ** (down - 8), dtype=torch.bfloat16))
    random = np.random.default_rng(down)
    chosen = random.integers(16, size=(ROWS, K))
    x = (random.integers(-9, 10, (ROWS, K)) * 2.0 ** random.integers(-23, 0, (ROWS, 1))).astype(np.float32)
    native = (x * np.asarray(e2m1.VALUES, np.float32)[chosen]).sum(1, dtype=np.float32)
    weights = (codes.float() * scale).bfloat16().float().numpy()
    kept = (x * weights[chosen]).sum(1, dtype=np.float32)
    assert kept.astype(np.float64).tolist() == (native * 2.0 ** (-119 + 8 - down)).tolist()  # float32 still holds all
    wanted = torch.from_numpy(native).bfloat16().double()
    got = torch.from_numpy(kept).bfloat16().double() * factor.double()
    last = 2.0 ** (down - 8)
    small = wanted.abs() < last / 128
    assert torch.equal(got[~small], wanted[~small])
    assert (got - torch.from_numpy(native).double()).abs()[small].le(last * 2.0**-15).all()
    assert (got[small] != wanted[small]).any()
