"""BF16 to FP8 against ml_dtypes; MXFP4 to FP8 against every base there is."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from truecast.casts import fp8
from truecast.casts.fp8 import BLOCK, CHANNEL, TENSOR, Tile

TILES: list[Tile] = [BLOCK, CHANNEL, TENSOR]
E4M3 = {float(v) for v in np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)}
MAGNITUDES = np.arange(8, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)


def as_bits(values: object) -> np.ndarray:
    return np.asarray(values, dtype=ml_dtypes.bfloat16).view(np.uint16)


def as_values(bits: np.ndarray) -> np.ndarray:
    return bits.view(ml_dtypes.bfloat16).astype(np.float32)


def tiles_of(shape: tuple[int, int], tile: Tile) -> list[tuple[tuple[int, int], tuple[slice, slice]]]:
    rows, cols = tile[0] or shape[0], tile[1] or shape[1]
    return [
        ((i, j), (slice(r, r + rows), slice(c, c + cols)))
        for i, r in enumerate(range(0, shape[0], rows))
        for j, c in enumerate(range(0, shape[1], cols))
    ]


def reference(bits: np.ndarray, tile: Tile) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Tile by tile: scale, codes by ml_dtypes' own rounding, sums in float64 added exactly."""
    values = as_values(bits)
    places = tiles_of(bits.shape, tile)
    scales = np.empty(np.array(places[-1][0]) + 1, np.float32)
    codes = np.empty(bits.shape, np.uint8)
    for index, place in places:
        amax = np.abs(values[place]).max()
        scales[index] = max(np.float32(amax / np.float32(448)), np.float32(2.0**-126)) if amax else 1
        codes[place] = (values[place] / scales[index]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    decoded = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    for index, place in places:
        decoded[place] *= scales[index]
    wide = values.astype(np.float64)
    return codes, scales, math.fsum(np.square(wide - decoded).ravel()), math.fsum(np.square(wide).ravel())


def check(bits: np.ndarray, tile: Tile) -> fp8.FP8Matrix:
    got = fp8.quantize(bits, tile)
    codes, scales, error, square = reference(bits, tile)
    np.testing.assert_array_equal(got.scales, scales)
    np.testing.assert_array_equal(got.codes, codes)
    assert not np.isin(got.codes & 0x7F, 0x7F).any()
    assert got.squared_error == pytest.approx(error, rel=1e-12, abs=0)
    assert got.squared_sum == pytest.approx(square, rel=1e-12, abs=0)
    return got


# ---- BF16 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [*TILES, (3, 100), (96, 0), (256, 7)])
@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (129, 257), (300, 1100), (3, 640)])
def test_bf16_is_rounded_tile_by_tile_with_ragged_edges(tile: Tile, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(7)
    check(as_bits(random.standard_normal(shape) * np.exp(random.standard_normal(shape) * 3)), tile)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(TILES),
    hnp.arrays(
        np.uint16,
        st.tuples(st.integers(1, 5), st.integers(1, 140)),
        elements=st.integers(0, 0xFFFF).filter(lambda b: b & 0x7F80 != 0x7F80),
    ),
)
def test_any_finite_bf16(tile: Tile, bits: np.ndarray) -> None:
    """All exponents and both zeros: subnormal inputs, tiles whose scale is held at 2^-126, amax near the top."""
    check(bits, tile)


def test_every_code_and_every_midpoint() -> None:
    """With amax 448 the scale is 1, and BF16 holds each midpoint of two neighbours: ties go to the even code."""
    codes = np.arange(0x7F, dtype=np.uint8)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    middles = (values[:-1] + values[1:]) / 2
    bits = as_bits([[*values, *middles]])
    np.testing.assert_array_equal(as_values(bits)[0], [*values, *middles])
    got = check(bits, TENSOR)
    assert got.scales.tolist() == [[1.0]]
    assert got.codes[0].tolist() == [*codes, *(c + (c & 1) for c in codes[:-1])]
    negative = check(bits | np.uint16(0x8000), TENSOR)
    assert negative.codes[0].tolist() == (got.codes[0] | 0x80).tolist()


@pytest.mark.parametrize("tile", TILES)
def test_a_tile_of_zeros_has_scale_one_and_keeps_its_signs(tile: Tile) -> None:
    bits = np.zeros((4, 256), np.uint16)
    bits[1, 5] = 0x8000
    got = check(bits, tile)
    assert set(got.scales.ravel()) == {1.0}
    assert got.codes.sum() == got.codes[1, 5] == 0x80
    assert (got.squared_error, got.squared_sum) == (0, 0)


def test_a_tile_of_subnormals_has_the_smallest_normal_scale() -> None:
    got = check(np.array([[1, 0x8002, 0x7F]], np.uint16), TENSOR)
    assert got.scales.tolist() == [[2.0**-126]]
    assert fp8.MIN_SCALE_EXPONENT == -126


@pytest.mark.parametrize("tile", TILES)
def test_no_scale_makes_the_largest_element_run_over(tile: Tile) -> None:
    """amax / 448 is rounded, so that amax / scale may lie above 448; it never comes near NaN, whatever the mantissa."""
    bits = np.arange(0x3F80, 0x4080, dtype=np.uint16)[:, None]
    got = check(bits, (1, 1) if tile == BLOCK else tile)
    if tile != TENSOR:
        assert set(got.codes.ravel()) == {0x7E}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("bad", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
@pytest.mark.parametrize("place", [(0, 0), (130, 7), (2, 200)])
def test_nan_and_infinity_are_refused_with_their_place(tile: Tile, bad: int, place: tuple[int, int]) -> None:
    bits = np.full((140, 201), 0x3F80, np.uint16)
    bits[place] = bad
    with pytest.raises(ValueError, match=f"row {place[0]}, column {place[1]}: NaN or infinity"):
        fp8.quantize(bits, tile)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (8,)])
def test_no_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected a matrix"):
        fp8.quantize(np.zeros(shape, np.uint16), BLOCK)


def test_the_input_stays_as_it_is() -> None:
    bits = as_bits(np.random.default_rng(1).standard_normal((130, 600)))
    bits.flags.writeable = False
    assert fp8.quantize(bits, BLOCK).codes.shape == bits.shape


# ---- MXFP4 -----------------------------------------------------------------------------------------------------------


def mxfp4_values(packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Exact in float64, minus zero included. Shape ``[N, K]``."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    magnitudes = np.ldexp(MAGNITUDES[codes & 7], np.repeat(scales.astype(int) - 127, 32, axis=-1))
    return np.where(codes & 8, -magnitudes, magnitudes)


def is_exact(values: np.ndarray, base: int) -> bool:
    """Does E4M3 hold every value under the scale 2^base? Powers of two are exact in float64."""
    return all(v in E4M3 for v in np.ldexp(np.unique(values), -base).tolist())


def matrix(
    random: np.random.Generator, rows: int, blocks: int, spread: int, codes: list[int]
) -> tuple[np.ndarray, ...]:
    drawn = random.choice(codes, (rows, blocks * 32)).astype(np.uint8) | random.integers(0, 2, (rows, blocks * 32)) * 8
    drawn = drawn.astype(np.uint8)
    low = int(random.integers(0, 254 - spread + 1))
    scales = random.integers(low, low + spread + 1, (rows, blocks)).astype(np.uint8)
    return drawn[:, 0::2] | drawn[:, 1::2] << 4, scales


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 22),
    st.sets(st.integers(0, 7), min_size=1).map(sorted),
    st.sampled_from([CHANNEL, (1, 32), (2, 64), TENSOR]),
)
def test_exact_where_any_base_is(seed: int, spread: int, codes: list[int], tile: Tile) -> None:
    """All bases are tried with exact arithmetic; where one is exact, the chosen one is, and the least such."""
    random = np.random.default_rng(seed)
    packed, scales = matrix(random, 3, 3, spread, codes)
    bases, inexact = fp8.exact_bases(packed, scales, tile)
    result = fp8.from_mxfp4(packed, scales, bases, tile).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    values = mxfp4_values(packed, scales)
    lost = 0
    for index, place in tiles_of((3, 96), tile):
        inside, base = values[place], int(bases[index])
        fitting = [b for b in range(-150, 140) if is_exact(inside, b)]
        assert is_exact(inside, base) == bool(fitting)
        if fitting and inside.any():
            assert base == max(fitting[0], -126)
        held = np.isin(np.ldexp(inside, -base), list(E4M3))
        lost += np.count_nonzero(~held)
        decoded = np.ldexp(result[place], base)
        np.testing.assert_array_equal(decoded[held], inside[held])
        assert (np.abs(decoded - inside) <= 2.0 ** (base - 10)).all()  # half a subnormal step
    assert inexact == lost
    np.testing.assert_array_equal(np.signbit(result), np.signbit(values))  # also those of zeros


@pytest.mark.parametrize(
    ("codes", "spread"), [(range(8), 14), ([1], 17), ([2], 17), ([3], 16), ([4], 17), ([5], 16), ([6], 17), ([7], 16)]
)
def test_how_far_exponents_may_lie_apart(codes: list[int], spread: int) -> None:
    """Every code in the lowest and the highest block: what fits exactly, and one more does not."""
    for apart, fits in ((spread, True), (spread + 1, False)):
        row = np.resize(np.array(codes, np.uint8), 32)
        packed = np.tile(row[0::2] | row[1::2] << 4, 2)[None]
        scales = np.array([[100, 100 + apart]], np.uint8)
        assert (fp8.exact_bases(packed, scales, CHANNEL)[1] == 0) == fits


def test_blocks_of_zeros_have_no_say() -> None:
    packed = np.full((2, 64), 0x22, np.uint8)
    packed[0, 16:32], packed[1] = 0x80, 0x08
    scales = np.array([[120, 254, 120, 120], [0, 254, 9, 1]], np.uint8)
    bases, inexact = fp8.exact_bases(packed, scales, CHANNEL)
    assert (bases.tolist(), inexact) == ([[-7 - 8], [0]], 0)
    codes = fp8.from_mxfp4(packed, scales, bases, CHANNEL)
    assert set(codes[0, :32]) == {0x78}  # 2^8
    assert codes[0, 32:64].tolist() == [0x00, 0x80] * 16
    assert codes[1].tolist() == [0x80, 0x00] * 64


@pytest.mark.parametrize("byte", [0, 1, 254])
def test_the_ends_of_e8m0(byte: int) -> None:
    packed, scales = np.full((1, 16), 0x71, np.uint8), np.array([[byte]], np.uint8)
    bases, inexact = fp8.exact_bases(packed, scales, BLOCK)
    assert inexact == 0
    assert bases.tolist() == [[max(byte - 127 - 6, -126)]]
    assert is_exact(mxfp4_values(packed, scales), int(bases[0, 0]))


def test_tiles_of_128_with_ragged_edges() -> None:
    random = np.random.default_rng(3)
    packed, scales = matrix(random, 130, 5, 0, list(range(1, 8)))
    scales[:128, :4], scales[:128, 4], scales[128:, :4], scales[128:, 4] = 100, 110, 120, 130
    bases, inexact = fp8.exact_bases(packed, scales, BLOCK)
    assert (bases.tolist(), inexact) == ([[-33, -23], [-13, -3]], 0)
    codes = fp8.from_mxfp4(packed, scales, bases, BLOCK)
    assert codes.shape == (130, 160)
    scale = 2.0 ** np.repeat(np.repeat(bases, [128, 2], 0), [128, 32], 1)
    got = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
    np.testing.assert_array_equal(got, mxfp4_values(packed, scales))
