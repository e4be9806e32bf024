"""GPTQ: less error of outputs on correlated inputs, the data-free rounding where inputs are alike."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truecast.casts import gptq, int4
from truecast.formats import int4 as codes_of
from truecast.formats import packing

ROWS, COLS = 48, 256


def mxfp4(seed: int, rows: int = ROWS, cols: int = COLS, spread: int = 4):
    rng = np.random.default_rng(seed)
    low = int(rng.integers(1, 250 - spread))
    scales = rng.integers(low, low + spread + 1, (rows, cols // 32)).astype(np.uint8)
    return rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8), scales


def values(made: int4.Int4Matrix) -> np.ndarray:
    codes = codes_of.decode_twos_complement(packing.unpack_nibbles(made.codes)).astype(np.float64)
    return codes * np.repeat(made.scales.view(ml_dtypes.bfloat16).astype(np.float64), 128, axis=1)


def output_error(packed, scales, made: int4.Int4Matrix, hessian: np.ndarray) -> float:
    off = gptq.decode(packed, scales) - values(made)
    return float(np.einsum("ij,jk,ik->", off, hessian, off))


def of_factors(rng: np.random.Generator) -> np.ndarray:
    """Inputs that are mostly a mixture of few factors."""
    inputs = rng.normal(size=(4 * COLS, COLS // 4)) @ rng.normal(size=(COLS // 4, COLS))
    inputs += 0.3 * rng.normal(size=inputs.shape)
    return inputs.T @ inputs / len(inputs)


def of_neighbours(rng: np.random.Generator) -> np.ndarray:
    return 0.9 ** np.abs(np.subtract.outer(np.arange(COLS), np.arange(COLS)))


def of_outliers(rng: np.random.Generator) -> np.ndarray:
    inputs = rng.normal(size=(4 * COLS, COLS)) * np.exp(rng.normal(size=COLS))
    return inputs.T @ inputs / len(inputs)


@pytest.mark.parametrize(
    ("hessian_of", "at_most"),
    [(of_factors, 0.35), (of_neighbours, 0.35), (of_outliers, 0.9)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_error_of_outputs_is_clearly_less(hessian_of, at_most: float) -> None:
    for seed in range(3):
        packed, scales = mxfp4(seed)
        hessian = hessian_of(np.random.default_rng(seed))
        plain = output_error(packed, scales, int4.quantize(packed, scales), hessian)
        weighted = int4.quantize(packed, scales, "exact", int4.importance(np.diag(hessian)))
        made = output_error(packed, scales, gptq.quantize(packed, scales, hessian), hessian)
        assert made < at_most * plain
        assert made < output_error(packed, scales, weighted, hessian)


@pytest.mark.parametrize("size", [1.0, 3.7, 2.0**-40])
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0, 1, 4, 12]))
@settings(max_examples=15, deadline=None)
def test_alike_inputs_give_the_data_free_rounding(size: float, seed: int, spread: int) -> None:
    packed, scales = mxfp4(seed, rows=8, spread=spread)
    ours, plain = gptq.quantize(packed, scales, np.eye(COLS) * size), int4.quantize(packed, scales)
    assert (ours.scales == plain.scales).all()
    assert (values(ours) == values(plain)).all() and (ours.codes == plain.codes).all()
    np.testing.assert_allclose(ours.errors, plain.errors, rtol=1e-12)
    np.testing.assert_allclose(ours.energies, plain.energies, rtol=1e-12)


def test_inputs_of_zeros_count_as_alike() -> None:
    packed, scales = mxfp4(0, rows=4)
    assert (gptq.quantize(packed, scales, np.zeros((COLS, COLS))).codes == int4.quantize(packed, scales).codes).all()


def test_it_is_the_textbook_procedure() -> None:
    """Column by column with the inverse Hessian, errors handed on to all later columns, under the same scales."""
    packed, scales = mxfp4(5, rows=6)
    hessian = of_factors(np.random.default_rng(5))
    made = gptq.quantize(packed, scales, hessian)
    damped = hessian + 0.01 * np.diag(hessian).mean() * np.eye(COLS)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    left, step = gptq.decode(packed, scales), made.scales.view(ml_dtypes.bfloat16).astype(np.float64)
    codes = np.empty((6, COLS))
    for j in range(COLS):
        s = step[:, j // 128]
        codes[:, j] = np.clip(np.rint(left[:, j] / s), -8, 7)
        error = (left[:, j] - s * codes[:, j]) / upper[j, j]
        left[:, j:] -= np.outer(error, upper[j, j:])
    ours = codes_of.decode_twos_complement(packing.unpack_nibbles(made.codes))
    assert (ours != codes).mean() < 0.005  # a target between two codes, told apart by the last bit


def test_two_runs_and_any_split_of_rows_give_the_same_bits() -> None:
    packed, scales = mxfp4(7)
    hessian = of_factors(np.random.default_rng(7))
    whole = gptq.quantize(packed, scales, hessian)
    half = gptq.quantize(packed[20:30], scales[20:30], hessian)
    assert (whole.codes[20:30] == half.codes).all() and (whole.scales[20:30] == half.scales).all()


def test_a_group_of_zeros_stays_so() -> None:
    packed, scales = mxfp4(2, rows=4)
    packed[1, 64:] = 0x80
    made = gptq.quantize(packed, scales, of_factors(np.random.default_rng(2)))
    assert (made.codes[1, 64:] == 0).all() and made.scales[1, 1] == 0x3F80


@pytest.mark.parametrize("exponent", [0, 1, 3, 120, 246])
def test_extreme_scales(exponent: int) -> None:
    packed, _ = mxfp4(3, rows=4)
    scales = np.full((4, COLS // 32), exponent, np.uint8)
    made = gptq.quantize(packed, scales, of_factors(np.random.default_rng(3)))
    assert np.isfinite(made.errors).all() and ((made.scales >> 7 & 255) > 0).all()
    assert made.squared_error <= made.squared_sum


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda h: np.where(np.eye(COLS) > 0, np.nan, h), "not finite"),
        (lambda h: -h, "negative at channel 0"),
        (lambda h: h - 0.2 * np.diag(h).mean() * np.eye(COLS), "not positive semidefinite|negative at"),
        (lambda h: h[:128, :128], "should be"),
    ],
)
def test_what_is_no_hessian(change, told: str) -> None:
    packed, scales = mxfp4(0, rows=2)
    with pytest.raises(ValueError, match=told):
        gptq.quantize(packed, scales, change(of_factors(np.random.default_rng(0))))


def test_ragged_rows() -> None:
    with pytest.raises(ValueError, match="multiple of 128"):
        gptq.quantize(np.zeros((1, 32), np.uint8), np.zeros((1, 2), np.uint8), np.eye(64))
