"""The INT4 cast against brute force over BF16 scales, in integer arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truecast.casts import int4, int4_steps
from truecast.casts.bf16_to_mxfp4 import quantize as to_mxfp4
from truecast.formats import e2m1, packing

HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12])


def group_of(codes: np.ndarray, k: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Packed codes [1, 64] and scale bytes [1, 4]."""
    return packing.pack_nibbles(codes.astype(np.uint8)[None]), np.array([k], dtype=np.int64).astype(np.uint8)


def values_of(codes: np.ndarray, k: list[int]) -> list[int]:
    """Values as integers in units of 2^(min k - 128)."""
    signs = np.where(codes & 8, -1, 1) * HALVES[codes & 7]
    return [int(v) << (k[i // 32] - min(k)) for i, v in enumerate(signs)]


def brute_force(codes: np.ndarray, k: list[int], weights: list[int], exponents: range) -> int:
    """BF16 bits of the best scale among all of these exponents, mantissas and signs; ties as specified."""
    values = values_of(codes, k)
    unit = min(k) - 128  # values are multiples of 2^unit
    best: tuple[int, int, int] | None = None
    bits = 0
    low = min(exponents) - 7 - unit  # all scales are multiples of 2^(unit + low)
    shift = max(0, -low)
    v = np.array([x << shift for x in values], dtype=object)
    w = np.array(weights, dtype=object)
    for exponent in exponents:
        for mantissa in range(128, 256):
            size = mantissa << (exponent - 7 - unit + shift)
            for sign in (1, -1):
                scaled = v * sign
                doubled = 2 * np.abs(scaled) + size
                q = doubled // (2 * size)
                tie = (doubled % (2 * size) == 0) & (q % 2 == 1)
                q = q - tie.astype(int)
                q = np.where(scaled < 0, -np.minimum(q, 8), np.minimum(q, 7))
                error = int((w * (scaled - size * q) ** 2).sum())
                key = (error, size, 0 if sign == 1 else 1)
                if best is None or key < best:
                    best = key
                    bits = (0 if sign == 1 else 0x8000) | (exponent + 127) << 7 | (mantissa - 128)
    return bits


def around(codes: np.ndarray, k: list[int], below: int) -> range:
    """Every exponent of a scale that could matter: two binades above the largest magnitude, ``below`` beneath it."""
    top = max(int(np.abs(x)).bit_length() for x in values_of(codes, k)) + min(k) - 129
    return range(max(-126, top - below), min(127, top + 2) + 1)


def shapes(rng: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """A group of a random kind: dense, sparse, few distinct magnitudes, one outlier, wide spread."""
    kind = int(rng.integers(6))
    k = (127 + rng.integers(-4, 5) + rng.integers(0, [1, 2, 4, 8, 12, 3][kind], size=4)).tolist()
    codes = rng.integers(0, 16, size=128)
    if kind == 1:
        codes[rng.random(128) < 0.9] = 8
    elif kind == 2:
        codes = rng.choice(rng.integers(0, 16, size=3), size=128)
    elif kind == 3:
        codes = np.where(codes & 7 > 2, codes & 8, codes)
        codes[int(rng.integers(128))] = rng.choice([7, 15])
        k[int(rng.integers(4))] += 3
    return codes, k


@pytest.mark.parametrize("seed", range(30))
def test_the_scale_is_the_best_of_all_bf16_scales_nearby(seed: int) -> None:
    codes, k = shapes(np.random.default_rng(seed))
    result = int4.quantize(*group_of(codes, k))
    assert int(result.scales[0, 0]) == brute_force(codes, k, [1] * 128, around(codes, k, 9))


@pytest.mark.parametrize("seed", range(100, 103))
def test_no_scale_anywhere_is_better(seed: int) -> None:
    """Every normal BF16 scale of both signs, with every element's error in exact float64 arithmetic."""
    codes, k = shapes(np.random.default_rng(seed))
    result = int4.quantize(*group_of(codes, k))
    v = np.array(values_of(codes, k), dtype=np.float64)
    bits = np.arange(0x0080, 0x7F80, dtype=np.uint32)
    scale = (bits << 16).view(np.float32).astype(np.float64) * 2.0 ** (128 - min(k))
    least = np.inf
    for sign in (1, -1):
        for chunk in np.array_split(scale * sign, 64):
            ratio = v / chunk[:, None]
            q = np.clip(np.rint(ratio), -8, 7)
            least = min(least, float(np.square(v - chunk[:, None] * q).sum(axis=1).min()))
    unit = 4.0 ** (min(k) - 128)
    assert result.squared_error == pytest.approx(least * unit, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("seed", range(200, 212))
def test_with_weights_the_weighted_error_is_the_least(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes, k = shapes(rng)
    weights = int4.importance(np.exp(rng.normal(0, [1, 4, 9][seed % 3], size=128)))
    result = int4.quantize(*group_of(codes, k), weights=weights)
    assert int(result.scales[0, 0]) == brute_force(codes, k, weights.tolist(), around(codes, k, 18))


def test_weights_can_make_a_clipped_outlier_the_best_choice() -> None:
    codes = np.full(128, 1)
    k = [132, 127, 127, 127]
    codes[:32] = 0
    codes[5] = 7
    vector = np.full(128, 1e9)
    vector[5] = 0.0
    weighted = int4.quantize(*group_of(codes, k), weights=int4.importance(vector))
    assert weighted.scales[0, 0] < int4.quantize(*group_of(codes, k)).scales[0, 0]
    assert int(weighted.scales[0, 0]) == brute_force(codes, k, int4.importance(vector).tolist(), around(codes, k, 20))


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32 - 1), st.sampled_from(int4.METHODS), st.booleans())
def test_codes_are_the_nearest_and_the_errors_are_theirs(seed: int, method: int4.Method, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    codes, k = shapes(rng)
    weights = int4.importance(rng.random(128)) if weighted else None
    result = int4.quantize(*group_of(codes, k), method=method, weights=weights)
    scale = float((result.scales.astype(np.uint32) << 16).view(np.float32)[0, 0])
    v = e2m1.decode(codes.astype(np.uint8)).astype(np.float64) * np.exp2(np.repeat(np.array(k) - 127.0, 32))
    nibbles = packing.unpack_nibbles(result.codes)[0].astype(np.int64)
    q = (nibbles ^ 8) - 8
    expected = np.clip(np.rint(v / scale), -8, 7)  # exact: a quotient of 4 by 8 bits is a tie or clear of one
    np.testing.assert_array_equal(q, expected)
    assert result.squared_error == pytest.approx(float(np.square(v - scale * q).sum()), rel=1e-12, abs=1e-300)
    assert result.squared_sum == pytest.approx(float(np.square(v).sum()), rel=1e-12)


def test_groups_on_one_grid_are_exact_and_counted() -> None:
    rng = np.random.default_rng(1)
    codes = rng.choice([0, 2, 4, 5, 6, 7, 10, 12, 13, 14, 15], size=128)  # 0, 1, 2, 3, 4, 6: whole numbers
    result = int4.quantize(*group_of(codes, [127] * 4))
    assert result.exact_groups == 1
    assert result.squared_error == 0
    codes[0] = 1  # 0.5 beside 6 needs the code 12
    assert int4.quantize(*group_of(codes, [127] * 4)).exact_groups == 0


def test_zeros_give_scale_one_and_codes_zero() -> None:
    codes = np.where(np.arange(128) % 3 == 0, 8, 0)
    for method in int4.METHODS:
        for k in ([0] * 4, [127] * 4, [254] * 4):
            result = int4.quantize(*group_of(codes, k), method=method)
            assert result.scales[0, 0] == 0x3F80
            assert not result.codes.any()
            assert (result.zero_groups, result.exact_groups, result.squared_error) == (1, 1, 0.0)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 8, 252, 253, 254])
def test_scales_are_normal_finite_bf16_at_both_ends_of_e8m0(k: int) -> None:
    rng = np.random.default_rng(k)
    codes = rng.integers(0, 16, size=128)
    for ks in ([k] * 4, [k, k, max(0, k - 2), k]):
        for method in int4.METHODS:
            bits = int(int4.quantize(*group_of(codes, ks), method=method).scales[0, 0])
            assert 0x0080 <= bits & 0x7FFF < 0x7F80
        exact = int(int4.quantize(*group_of(codes, ks)).scales[0, 0])
        assert exact == brute_force(codes, ks, [1] * 128, around(codes, ks, 9))


@pytest.mark.parametrize("seed", range(40))
def test_the_best_scale_is_found_where_it_is_the_smallest_there_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = np.full(128, 3)
    codes[:1] = 7
    if seed:
        codes = rng.integers(0, 8, size=128) >> int(rng.integers(0, 3)) | 8 * rng.integers(0, 2, size=128)
        codes[0] = 7 - seed % 3
    k = [0] * 4 if seed % 2 else [0, 0, int(rng.integers(0, 3)), 0]
    weights = int4.importance(np.exp(rng.normal(0, 3, size=128))) if seed % 5 == 4 else None
    chosen = [1] * 128 if weights is None else weights.tolist()
    result = int4.quantize(*group_of(codes, k), weights=weights)
    assert int(result.scales[0, 0]) == brute_force(codes, k, chosen, around(codes, k, 18))


def test_values_below_every_scale_get_the_smallest_one() -> None:
    codes = np.full(128, 1)
    result = int4.quantize(*group_of(codes, [0] * 4))  # 2^-128: half of the smallest normal would be 2^-127
    assert result.scales[0, 0] == 0x0080
    assert not result.codes.any()


def test_far_apart_blocks() -> None:
    """A block 200 binades below the others is zero, and does not disturb them."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, size=128)
    codes[:32] = 7
    low = int4.quantize(*group_of(codes, [5, 205, 205, 204]))
    codes[:32] = 0
    none = int4.quantize(*group_of(codes, [5, 205, 205, 204]))
    assert low.scales[0, 0] == none.scales[0, 0]
    np.testing.assert_array_equal(low.codes, none.codes)


def test_the_rules_to_compare_with() -> None:
    codes = np.zeros(128, dtype=int)
    codes[:3] = [7, 2, 9]  # 6, 1, -0.5
    signed = int4.quantize(*group_of(codes, [127] * 4), method="signed")
    assert signed.scales[0, 0] == 0xBF40  # -0.75: 6 becomes -8
    assert signed.codes[0, 0] & 15 == 8
    amax = int4.quantize(*group_of(codes, [127] * 4), method="amax")
    assert amax.scales[0, 0] == 0x3F5B  # 0.85546875, the BF16 next to 6/7


def test_dimensions_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="576 elements, which is no multiple of 128"):
        int4.quantize(np.zeros((2, 288), np.uint8), np.zeros((2, 18), np.uint8))
    with pytest.raises(ValueError, match=r"scales are \[2, 3\], should be \[2, 4\]"):
        int4.quantize(np.zeros((2, 64), np.uint8), np.zeros((2, 3), np.uint8))
    with pytest.raises(ValueError, match=r"weights are \[64\], should be \[128\]"):
        int4.quantize(np.zeros((2, 64), np.uint8), np.zeros((2, 4), np.uint8), weights=np.ones(64, np.int64))
    with pytest.raises(ValueError, match="NaN"):
        int4.quantize(np.zeros((2, 64), np.uint8), np.full((2, 4), 255, np.uint8))


@pytest.mark.parametrize(("bad", "what"), [(-1.0, "-1"), (np.nan, "nan"), (np.inf, "inf")])
def test_importance_refuses_what_is_no_weight(bad: float, what: str) -> None:
    vector = np.ones(256)
    vector[130] = bad
    with pytest.raises(ValueError, match=f"input channel 130 is {what}"):
        int4.importance(vector)
    with pytest.raises(ValueError, match=r"got \[100\]"):
        int4.importance(np.ones(100))


def test_importance_is_relative_to_the_group() -> None:
    vector = np.concatenate([np.full(128, 1e-9), np.linspace(0, 5, 128), np.zeros(128)])
    weights = int4.importance(vector)
    assert (weights[:128] == 65535).all()
    assert weights[128] == 1
    assert weights[255] == 65535
    assert (weights[256:] == 65535).all()


@pytest.mark.parametrize(
    ("law", "least", "over_signed", "over_amax"), [("gauss", 20.9, 0.2, 3.0), ("t5", 17.8, 0.3, 2.0)]
)
def test_error_of_known_laws(law: str, least: float, over_signed: float, over_amax: float) -> None:
    """In dB; MXFP4 by the OCP rule of 2^18 weights."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((256, 1024)) if law == "gauss" else rng.standard_t(5, (256, 1024))
    source = to_mxfp4(weights.astype(np.float32))
    results = {method: int4.quantize(*source, method=method) for method in int4.METHODS}
    decibels = {m: 10 * np.log10(r.squared_sum / r.squared_error) for m, r in results.items()}
    assert decibels["exact"] > least
    assert decibels["exact"] - decibels["signed"] > over_signed
    assert decibels["exact"] - decibels["amax"] > over_amax
    assert (results["exact"].errors <= results["signed"].errors).all()
    assert (results["exact"].errors <= results["amax"].errors).all()


def test_result_does_not_depend_on_how_rows_are_batched() -> None:
    rng = np.random.default_rng(8)
    packed, scales = to_mxfp4(rng.standard_normal((9, 384)).astype(np.float32))
    whole = int4.quantize(packed, scales)
    parts = [int4.quantize(packed[i : i + 2], scales[i : i + 2]) for i in range(0, 9, 2)]
    np.testing.assert_array_equal(whole.codes, np.concatenate([p.codes for p in parts]))
    np.testing.assert_array_equal(whole.scales, np.concatenate([p.scales for p in parts]))
    np.testing.assert_array_equal(whole.errors, np.concatenate([p.errors for p in parts]))


def test_steps_are_complete() -> None:
    """Walking the changes reproduces the code of every live magnitude at every mantissa, but for ties."""
    codes = int4_steps.START.copy()
    for i in range(int4_steps.INTERVALS):
        for index, before in int4_steps.CHANGES[i]:
            if index < len(int4_steps.LIVE):
                assert codes[index] == before
                codes[index] += 1
        for mantissa in range(int4_steps.LOW[i], int4_steps.HIGH[i] + 1):
            for index, value in enumerate(int4_steps.LIVE):
                nearest = int(int4_steps.CODES[mantissa - 128, index])
                walked = int(codes[index])
                assert abs(32 * value - mantissa * walked) == abs(32 * value - mantissa * nearest)
