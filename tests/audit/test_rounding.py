"""Every rounding against ml_dtypes, by brute force over bit patterns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truecast.audit import rounding

PATTERNS = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
FINITE = PATTERNS[np.isfinite(PATTERNS)]
"""Every finite BF16 value."""

GRIDS = {"e4m3": ml_dtypes.float8_e4m3fn, "e2m1": ml_dtypes.float4_e2m1fn}


@pytest.mark.parametrize("name", GRIDS)
def test_every_bf16_value_and_every_tie_rounds_to_even(name: str) -> None:
    kind = GRIDS[name]
    top = float(ml_dtypes.finfo(kind).max)
    grid = np.unique(np.arange(256).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    grid = grid[np.isfinite(grid)] if name == "e4m3" else np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    ties = (grid[1:] + grid[:-1]) / 2
    near = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9))])
    values = np.concatenate([FINITE, near, -near, grid]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = np.clip(values, -top, top).astype(kind).astype(np.float32)
    found = getattr(rounding, name)(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def e4m3(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


ROWS = arrays(
    np.float32, st.tuples(st.integers(1, 3), st.sampled_from([16, 32, 40, 64])), elements=st.floats(-1e4, 1e4, width=32)
)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_one_scale_a_token(x: np.ndarray) -> None:
    scale = np.abs(x).max(1, keepdims=True) / np.float32(448)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.where(scale == 0, 0, e4m3(x / scale) * scale)
    np.testing.assert_array_equal(rounding.fp8_token(torch.from_numpy(x)).numpy(), expected)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0.03125, 0.7, 5.0]))
def test_one_static_scale_saturates(x: np.ndarray, scale: float) -> None:
    expected = e4m3(x / np.float32(scale)) * np.float32(scale)
    found = rounding.fp8_tensor(torch.from_numpy(x), scale).numpy()
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found).max() <= np.float32(448) * np.float32(scale)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_mxfp8_by_element(x: np.ndarray) -> None:
    found = rounding.mxfp8(torch.from_numpy(x)).numpy()
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], 32):
            block = x[row, start : start + 32].astype(np.float64)
            top = np.abs(block).max()
            scale = 2.0 ** max(int(np.floor(np.log2(top))) - 8, -127) if top else 1.0
            expected = e4m3((block / scale).astype(np.float32)).astype(np.float64) * scale
            np.testing.assert_array_equal(found[row, start : start + 32], expected.astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([None, 0.25, 0.003]))
def test_nvfp4_by_element(x: np.ndarray, stored: float | None) -> None:
    found = rounding.nvfp4(torch.from_numpy(x), stored).numpy()
    whole = np.abs(x).max() / np.float32(448 * 6) if stored is None else np.float32(stored)
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], 16):
            block = x[row, start : start + 16]
            scale = e4m3(np.abs(block).max() / np.float32(6) / whole) * whole if whole else np.float32(0)
            with np.errstate(over="ignore"):
                codes = np.clip(block / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn) if scale else np.zeros_like(block)
            np.testing.assert_array_equal(found[row, start : start + 16], codes.astype(np.float32) * scale)


def test_zeros_stay_zeros() -> None:
    zero = torch.zeros(2, 48)
    for name in ("fp8_token", "mxfp8", "nvfp4"):
        assert not getattr(rounding, name)(zero).any()
