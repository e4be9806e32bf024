"""The compiled judge of INT4 groups against fractions."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from truecast.verify import int4_kernel as kernel

HALVES = (0, 1, 2, 3, 4, 6, 8, 12)
LEAST, LARGEST = Fraction(2) ** -126, Fraction(255) * Fraction(2) ** 120


def value(code: int, exponent: int) -> Fraction:
    return Fraction(HALVES[code & 7] * (-1 if code >= 8 else 1), 2) * Fraction(2) ** exponent


def best(v: Fraction, s: Fraction) -> tuple[Fraction, set[int]]:
    """Least squared error of a value under a scale, and every code that has it."""
    around = floor(v / s)
    tried = {min(max(c, -8), 7) for c in (around, around + 1)}
    errors = {q: (v - q * s) ** 2 for q in tried}
    least = min(errors.values())
    return least, {q for q, error in errors.items() if error == least}


def neighbours(bits: int) -> list[Fraction]:
    """Normal BF16 numbers next to one, of its sign, from the bits of a float32."""
    found = []
    for step in (-1, 1):
        other = (bits >> 16) + step
        if 0x0080 <= other & 0x7FFF <= 0x7F7F and other >> 15 == bits >> 31:
            found.append(scale_of(other << 16))
    return found


def scale_of(bits: int) -> Fraction:
    return Fraction(float(np.uint32(bits).view(np.float32)))


def run(codes, exponents, bits, stored, offset, weights):
    packed = np.array(codes, np.uint8)
    out = np.array(stored, np.int64) & 15
    counts, firsts = np.zeros(kernel.TALLIES, np.int64), np.zeros((kernel.TALLIES, 2), np.int64)
    sums, histogram = np.zeros(2), np.zeros(kernel.BINS, np.int64)
    kernel.judge_groups(
        (packed[::2] | packed[1::2] << 4)[None],
        (np.array(exponents) + 127).astype(np.uint8)[None],
        (out[::2] | out[1::2] << 4).astype(np.uint8)[None] ^ np.uint8(offset),
        offset,
        np.array([[bits]], np.uint32),
        np.zeros(0, np.int64) if weights is None else np.array(weights, np.int64),
        weights is not None,
        counts,
        sums,
        firsts,
        histogram,
    )
    return counts, sums, firsts, histogram


@st.composite
def groups(draw):
    """Codes of few or of all kinds, exponents near one another or far apart, a scale that may fit, codes mostly best."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    base = draw(st.integers(-127, 127))
    spread = draw(st.sampled_from([0, 1, 2, 4, 12, 40, 254]))
    exponents = np.clip(base + rng.integers(-spread, spread + 1, 4), -127, 127)
    kinds = rng.choice(16, draw(st.integers(1, 16)), replace=False)
    codes = rng.choice(kinds, 128)
    field = int(np.clip(exponents.max() + 127 + draw(st.integers(-6, 2)), 0, 254))
    fraction = draw(st.one_of(st.integers(0, 127).map(lambda n: n << 16), st.sampled_from([0, 127 << 16])))
    if draw(st.integers(0, 5)) == 0:
        fraction |= draw(st.integers(0, 0xFFFF))  # no BF16 number
    bits = draw(st.booleans()) << 31 | field << 23 | fraction
    if bits & 0x7FFFFFFF == 0:
        bits |= 1 << 23
    s = scale_of(bits)
    stored = [draw_code(rng, best(value(int(c), int(exponents[i // 32])), s)[1]) for i, c in enumerate(codes)]
    if draw(st.integers(0, 3)) == 0:
        stored[int(rng.integers(128))] = int(rng.integers(-8, 8))
    weights = rng.choice([1, 2, 100, 65535], 128).tolist() if draw(st.booleans()) else None
    return [int(c) for c in codes], [int(e) for e in exponents], bits, stored, draw(st.sampled_from([0, 0x88])), weights


def draw_code(rng: np.random.Generator, among: set[int]) -> int:
    return int(rng.choice(sorted(among)))


HUGE = [7] + [1] * 127
WEIGHED = [1] + [65535] * 127


@settings(max_examples=300, deadline=None)
@given(groups())
@example((HUGE, [30, 0, 0, 0], 0x3F800000, [7] + [0] * 31 + [0] * 96, 0, WEIGHED))
@example((HUGE, [10, 10, 10, 10], 0x3B800000, [7] * 128, 0, None))
@example(([15] + [7] * 127, [127] * 4, 0x7F7F0000, [-6] + [6] * 127, 0, None))
@example(([1] * 128, [-127] * 4, 0x00800000, [0] * 128, 0, None))
@example(([2] * 128, [-127] * 4, 0x01000000, [0] * 128, 0, None))
@example(([3] * 128, [-127] * 4, 0x01000000, [0] * 128, 0, None))
@example(([3] * 128, [-126] * 4, 0x01800000, [0] * 128, 0, WEIGHED))
def test_every_judgement_is_that_of_fractions(group) -> None:
    codes, exponents, bits, stored, offset, weights = group
    counts, sums, firsts, histogram = run(codes, exponents, bits, stored, offset, weights)
    values = [value(c, exponents[i // 32]) for i, c in enumerate(codes)]
    s = scale_of(bits)
    wrong = [i for i, (v, q) in enumerate(zip(values, stored, strict=True)) if q not in best(v, s)[1]]
    assert counts[kernel.NEAREST] == 128 - len(wrong)
    if wrong:
        assert counts[kernel.WRONG_CODES] == len(wrong) and firsts[kernel.WRONG_CODES].tolist() == [0, wrong[0]]

    def error(scale: Fraction) -> Fraction:
        heavy = [1] * 128 if weights is None else weights
        return sum((w * best(v, scale)[0] for w, v in zip(heavy, values, strict=True)), Fraction(0))

    own = error(s)
    true_error = sum(((v - q * s) ** 2 for v, q in zip(values, stored, strict=True)), Fraction(0))
    normal = bits & 0xFFFF == 0 and abs(s) >= LEAST
    beaten = any(error(other) < own for other in neighbours(bits)) if normal else true_error > 0
    if normal and all(0 in best(v, s)[1] for v in values):
        beaten |= max(abs(v) for v in values) > LEAST / 2
    assert bool(counts[kernel.UNBEATEN]) == (not beaten), (own, [error(o) for o in neighbours(bits)])
    if normal and not beaten:
        assert bool(counts[kernel.MIRRORED]) == (error(-s) < own)

    energy = sum((v * v for v in values), Fraction(0))
    assert sums[0] == 0 if true_error == 0 else abs(Fraction(sums[0]) / true_error - 1) < 1e-13
    assert sums[1] == 0 if energy == 0 else abs(Fraction(sums[1]) / energy - 1) < 1e-13
    assert counts[kernel.EXACT] == (true_error == 0)
    assert counts[kernel.ZERO] == (energy == 0)
    assert counts[kernel.NEGATIVE] == (s < 0)
    assert counts[kernel.OTHER_SCALES] == (not normal)
    if energy and true_error:
        decibels = 10 * np.log10(float(energy / true_error)) if energy / true_error < 10**300 else 10**4
        place = int(np.flatnonzero(histogram)[0])
        assert place == min(max(floor(decibels), 0), kernel.BINS - 1) or abs(decibels - round(decibels)) < 1e-9


def test_ties_between_codes_are_accepted_both_ways() -> None:
    for q in (1, 2):
        counts, _, _, _ = run([3] * 128, [0] * 4, 0x3F800000, [q] * 128, 0, None)  # 1.5 under scale 1
        assert counts[kernel.NEAREST] == 128


def test_only_the_first_of_several_places_is_kept() -> None:
    counts, _, firsts, _ = run([2] * 128, [0] * 4, 0x3F800000, [1, 2, 3] + [1] * 125, 0, None)
    assert counts[kernel.WRONG_CODES] == 2 and firsts[kernel.WRONG_CODES].tolist() == [0, 1]
