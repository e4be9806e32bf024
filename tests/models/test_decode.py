"""Decoding against the tables of the formats room, which it does not use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from truecast.formats import e2m1, e4m3, e8m0, int4, packing
from truecast.models.decode import decode

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
EVERY_BYTE = np.arange(256, dtype=np.uint8)


def tensor(values: np.ndarray) -> torch.Tensor:  # type: ignore[type-arg]
    return torch.from_numpy(np.ascontiguousarray(values))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mxfp4_every_code_under_every_scale(dtype: torch.dtype) -> None:
    """Exact in each dtype, minus zero kept, wherever the dtype holds the value at all."""
    codes = np.tile(EVERY_BYTE[:, None].repeat(16, 1).reshape(1, 256 * 16), (255, 1))
    scales = np.repeat(EVERY_BYTE[:255, None], 256, axis=1)
    values = e2m1.decode(packing.unpack_nibbles(codes)).astype(np.float64)
    wanted = values * np.repeat(e8m0.decode(scales).astype(np.float64), 32, axis=1)
    ours = decode("mxfp4", tensor(codes), tensor(scales), (1, 32), None, False, dtype).double().numpy()
    fits = np.abs(wanted) < 2.0**128 if dtype != torch.float64 else np.full(wanted.shape, True)
    assert np.array_equal(ours[fits], wanted[fits])
    assert np.array_equal(np.signbit(ours), np.signbit(wanted))


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("factor", [2.0**-9, 1.0, 0.0037, 1.75])
def test_nvfp4(factor: float, divides: bool) -> None:
    rng = np.random.default_rng(1)
    codes, scales = rng.integers(0, 256, (127, 64), dtype=np.uint8), np.tile(EVERY_BYTE[:127, None], (1, 8))
    factor = float(np.float32(factor))
    block = np.repeat(e4m3.decode(scales).astype(np.float64), 16, axis=1)
    values = e2m1.decode(packing.unpack_nibbles(codes)).astype(np.float64) * block
    wanted = values / factor if divides else values * factor
    for dtype, ulp in zip(DTYPES, (2.0**-53, 2.0**-24, 2.0**-8 * 1.001), strict=True):
        ours = decode("nvfp4", tensor(codes), tensor(scales), (1, 16), factor, divides, dtype).double().numpy()
        power = np.frexp(factor)[0] == 0.5
        bound = 0 if power else np.abs(wanted) * ulp
        assert (np.abs(ours - wanted) <= bound).all()


@given(st.integers(0, 1 << 30))
def test_int4(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (3, 128), dtype=np.uint8)
    scales = torch.from_numpy(rng.standard_normal((3, 2))).to(torch.bfloat16)
    wanted = int4.unpack(codes) * np.repeat(scales.double().numpy(), 128, axis=1)
    for dtype in DTYPES:
        ours = decode("w4afp8", tensor(codes), scales, (1, 128), None, False, dtype)
        assert torch.equal(ours, torch.from_numpy(wanted).to(dtype))


@pytest.mark.parametrize(("tile", "shape"), [((128, 128), (2, 3)), ((1, 0), (200, 1))])
def test_fp8_ragged_edges(tile: tuple[int, int], shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    codes = rng.choice(EVERY_BYTE[(EVERY_BYTE & 0x7F) != 0x7F], (200, 300))
    scales = np.exp2(rng.integers(-9, 9, shape)).astype(np.float32)
    spread = scales[np.arange(200) // tile[0]][:, np.arange(300) // (tile[1] or 300)].astype(np.float64)
    wanted = torch.from_numpy(e4m3.decode(codes).astype(np.float64) * spread)
    for dtype in DTYPES:
        ours = decode("fp8", tensor(codes), tensor(scales), tile, None, False, dtype)
        assert torch.equal(ours.double(), wanted)
