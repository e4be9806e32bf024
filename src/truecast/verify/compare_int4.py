"""An INT4 matrix against the MXFP4 matrix that it was made of, or against the same one in another dialect.

What is held against a manifest: that every code is a nearest one for its stored scale; that the scale is what the method
says, for ``exact`` that neither BF16 neighbour nor the other sign has a smaller error; and the figures. Without a
manifest, or under a method that is not known here, scales must be legal, and the rest is reported only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from truecast.verify.compare import check_source
from truecast.verify.int4_scales import prescribed_bits
from truecast.verify.matrix import First, MatrixResult
from truecast.verify.quality import Figures
from truecast.verify.rules import METHODS, Promised, Rules
from truecast.verify.scaled import GROUP, Scaled, fixed
from truecast.verify.stored import Packed

U8 = NDArray[np.uint8]

_CHUNK_BYTES = 1 << 20
SAME = 1e-9
"""Figures of a manifest may differ by so much of their value: sums in another order are others."""


def prepare() -> None:
    """Compile the judge, or load it compiled, so that several processes do not do that at once."""
    from truecast.verify import int4_kernel as kernel

    codes, scales, bits = np.zeros((1, 64), np.uint8), np.zeros((1, 4), np.uint8), np.zeros((1, 1), np.uint32)
    counts, firsts = np.zeros(kernel.TALLIES, np.int64), np.zeros((kernel.TALLIES, 2), np.int64)
    some, none = [fixed(a) for a in (codes, scales, bits)], np.zeros(0, np.int64)
    kernel.judge_groups(
        some[0], some[1], some[0], 0, some[2], none, False, counts, np.zeros(2), firsts, np.zeros(64, np.int64)
    )


def compare_int4(source: Packed, out: Scaled, rules: Rules, weights: NDArray[np.int64] | None = None) -> MatrixResult:
    """Judge one matrix. ``weights``: integer importance ``[cols]``, if the manifest says that it was used.

    Raises: InputError for a source with NaN scales.
    """
    from truecast.verify import int4_kernel as kernel  # compiles on import or first use: only where it is needed

    check_source(source)
    result = MatrixResult(out.stored)
    name, claim = out.stored.name, rules.int4
    counts, firsts = np.zeros(kernel.TALLIES, np.int64), np.zeros((kernel.TALLIES, 2), np.int64)
    sums, histogram = np.zeros(2), np.zeros(kernel.BINS, np.int64)
    first_of: dict[int, tuple[int, int]] = {}
    bits, ruled = fixed(out.factor_bits), First()
    codes, scales, stored = fixed(source.codes), fixed(source.scale), fixed(out.codes)
    for rows in _chunks(out):
        before = counts.copy()
        kernel.judge_groups(
            codes[rows],
            scales[rows],
            stored[rows],
            out.offset,
            bits[rows],
            np.zeros(0, np.int64) if weights is None else weights,
            weights is not None,
            counts,
            sums,
            firsts,
            histogram,
        )
        for kind in np.flatnonzero((before == 0) & (counts > 0)):
            first_of[int(kind)] = rows.start + int(firsts[kind, 0]), int(firsts[kind, 1])
        if claim is not None and claim.method in ("signed", "amax"):
            _check_rule(claim.method, source, bits[rows], rows, ruled)
    figures = Figures(
        matrices=1,
        elements=out.stored.rows * out.stored.cols,
        squared_error=float(sums[0]),
        squared_sum=float(sums[1]),
        nearest=int(counts[kernel.NEAREST]),
        groups=int(counts[kernel.GROUPS]),
        exact_groups=int(counts[kernel.EXACT]),
        zero_groups=int(counts[kernel.ZERO]),
        unbeaten=int(counts[kernel.UNBEATEN]),
        negative_scales=int(counts[kernel.NEGATIVE]),
        other_scales=int(counts[kernel.OTHER_SCALES]),
    )
    result.figures, result.histogram = figures, [int(n) for n in histogram]

    def fail(kind: int, role: str, why: str, what: str) -> None:
        number = int(counts[kind])
        if number:
            more = "" if number == 1 else f" ({number} {what}, this is the first)"
            result.fail("scale" if role == "scale" else "value", role, why + more, *first_of[kind])

    fail(kernel.ILLEGAL, "scale", "group scale is zero or not finite", "scales are illegal")
    check_approximates(result, claim is not None and claim.method in METHODS)
    if claim is None:
        return result
    fail(kernel.ODD_ZERO, "scale", "scale of an all-zero group is not 1", "groups are so")
    if claim.method in METHODS:
        fail(kernel.WRONG_CODES, "codes", "the code is not the nearest one for its stored scale", "codes")
        ruled.tell(result, "scale", "scale", "scales are not")
    if claim.method == "exact" and (claim.weights is None) == (weights is None):
        fail(kernel.BEATEN, "scale", "a neighbouring BF16 scale has a smaller error in this group", "groups")
        if claim.both_signs:
            fail(kernel.MIRRORED, "scale", "the scale with the other sign has a smaller error in this group", "groups")
    if claim.method in METHODS and not claim.both_signs and counts[kernel.NEGATIVE]:
        result.fail("scale", "scale", "has negative scales, which the manifest rules out")
    check_figures(result, claim.matrices.get(name), "int4")
    return result


def check_approximates(result: MatrixResult, judged: bool) -> None:
    """Whoever made a matrix: were it zeros, it would be farther from its source.

    ``judged``: each code is held against its value, so that zeros are there because nothing nearer is.
    """
    figures = result.figures
    assert figures is not None
    lost = figures.squared_error == figures.squared_sum > 0 and not judged
    if lost or figures.squared_error > figures.squared_sum:
        ratio = f"squared error {figures.squared_error:.4g}, sum of squares {figures.squared_sum:.4g}"
        result.fail("value", "codes", f"is no approximation of the source: {ratio}")


def check_figures(result: MatrixResult, said: Promised | None, key: str) -> None:
    """Hold the figures of a matrix against those that the manifest states."""
    figures, name = result.figures, result.out.name
    assert figures is not None
    if said is None:
        result.fail("figures", "codes", f"the manifest has no figures for {name} under {key!r}")
        return
    for term, value in said.items():
        own = getattr(figures, term)
        same = value == own if isinstance(own, int) else abs(value - own) <= SAME * abs(own)
        if not same:
            result.fail("figures", "codes", f"{term} of {name} is {own!r}, the manifest says {value!r}")


def compare_same_int4(source: Scaled, out: Scaled) -> MatrixResult:
    """Compare two dialects of one INT4 matrix: codes as integers, scales as the float32 that each stands for."""
    result = MatrixResult(out.stored)
    codes, scales = First(), First()
    flip = np.uint8(source.offset ^ out.offset)
    for rows in _chunks(out):
        differing = source.codes[rows] ^ out.codes[rows] ^ flip
        if differing.any():
            row, byte = (int(i) for i in np.argwhere(differing)[0])
            column = 2 * byte + (not differing[row, byte] & 15)
            before, after = (int(s.integers(rows.start + row, rows.start + row + 1)[0, column]) for s in (source, out))
            codes.note(rows.start + row, column, f"code is {after}, the source has {before}")
            codes.count += int(np.count_nonzero(differing & 15) + np.count_nonzero(differing >> 4)) - 1
    places = np.argwhere(source.factor_bits != out.factor_bits)
    for row, group in places[:1]:
        have, want = (float(s.factors[row, group]) for s in (out, source))
        scales.note(int(row), int(group) * GROUP, f"group scale is {have!r}, the source has {want!r}")
        scales.count = len(places)
    codes.tell(result, "value", "codes", "codes differ")
    scales.tell(result, "scale", "scale", "scales differ")
    return result


def _check_rule(method: str, source: Packed, bits: NDArray[np.uint32], rows: slice, ruled: First) -> None:
    wanted = prescribed_bits(method, source.codes[rows], source.scale[rows])
    for row, group in np.argwhere(wanted != bits):
        have, want = (float(b[row, group].view(np.float32)) for b in (bits, wanted))
        why = f"group scale is {have!r}, the manifest's rule {method!r} gives {want!r}"
        ruled.note(rows.start + int(row), int(group) * GROUP, why)


def _chunks(out: Scaled) -> Iterator[slice]:
    step = max(1, _CHUNK_BYTES // max(1, out.codes.shape[1]))
    for row in range(0, out.stored.rows, step):
        yield slice(row, min(row + step, out.stored.rows))
