"""Is a 4-bit matrix, recast, still the same matrix? Every element, as integers.

The fast way settles nearly everything: codes byte for byte equal, and each block scale the byte that E4M3 has for
``2^(k-m)`` under a global scale ``2^m``; or codes and scales both byte for byte equal. Only half blocks that differ
are decoded. No arithmetic in floating point decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from truecast.errors import InputError
from truecast.formats import e4m3, e8m0, packing
from truecast.verify.canonical import equal_values, odd_parts
from truecast.verify.inexact import best_possible, own_errors, squared_errors, wrongly_rounded
from truecast.verify.matrix import First, MatrixResult
from truecast.verify.report import Inexact
from truecast.verify.rules import Rules
from truecast.verify.stored import Packed

U8 = NDArray[np.uint8]

_CHUNK = 8192  # half blocks decoded at a time
_DECIDING = 256  # half blocks asked at a time whether they need the global scale


def check_source(source: Packed) -> None:
    """Refuse a source that holds no numbers. Raises: InputError naming tensor, row and block."""
    top = int(source.scale.max(initial=0)) if source.global_scale is None else 0xFF
    if top == e8m0.NAN and (bad := source.nan_scales).any():
        row, block = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"{source.stored.name}: block scale is NaN (byte {int(source.scale[row, block])}) at row {row}, block {block}",
            where=source.stored.parts["scale"].tensor.where,
            fix="the source itself is damaged: download the shard again",
        )
    g = source.global_scale
    if g is not None and not (np.isfinite(g) and g > 0):
        where = source.stored.parts["global_scale"].tensor.where
        raise InputError(f"global scale is {g}; it must be positive and finite", where=where)


def same_bytes(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    """Are two contiguous arrays of one size byte for byte equal?"""
    x, y = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
    if x.size == y.size and x.size % 8 == 0:
        return bool(np.array_equal(x.view(np.uint64), y.view(np.uint64)))
    return bool(np.array_equal(x, y))


def compare_packed(source: Packed, out: Packed, rules: Rules, same_codes: bool | None = None) -> MatrixResult:
    """Compare one matrix of equal shape on both sides, both 4-bit. ``same_codes``: are the packed codes equal, if known.

    Raises: InputError for a source with NaN scales or a global scale that is not positive and finite.
    """
    check_source(source)
    result = MatrixResult(out.stored)
    g = out.global_scale
    if g is not None and not (np.isfinite(g) and g > 0):
        result.fail("global_scale", "global_scale", f"global scale is {g}; it must be positive and finite", 0, 0)
        return result
    if same_codes is None:
        same_codes = same_bytes(source.codes, out.codes)
    if _rounded_reciprocal(source, out, rules, same_codes):
        result.counts.inexact_half_blocks = result.counts.half_blocks
        return result
    suspects = _suspects(source, out, same_codes)
    if suspects is not None or out.stored.name in rules.inexact:
        places = np.empty(0, np.int64) if suspects is None else suspects
        _compare_half_blocks(source, out, places, same_codes, rules, result)
    if rules.canonical:
        _check_global_scale(source, out, result)
    return result


def global_exponent(packed: Packed) -> int | None:
    """``m`` where the (multiplying) global scale is ``2^m``, None where it is no power of two."""
    assert packed.global_scale is not None
    odd, power = odd_parts(packed.global_scale)
    if odd != 1:
        return None
    return -power if packed.stored.divides else power


def decides_global_scale(source: Packed, out: Packed) -> bool:
    """Would a half block be clipped under half this global scale? Then the global scale is no larger than needed.

    Looks only at half blocks of the largest scales, and at no more than the first that decides.
    """
    m = None if out.global_scale is None or source.global_scale is not None else global_exponent(out)
    if m is None:
        return False
    top = np.flatnonzero(np.repeat(source.scale.astype(np.int64) - e8m0.BIAS >= m + e4m3.MAX_POW2, 2, axis=1))
    per_row = source.stored.cols // 16
    for start in range(0, top.size, _DECIDING):
        index = top[start : start + _DECIDING]
        k = e8m0.exponents(source.scale[index // per_row, index % per_row // 2]).astype(np.int64)
        if not best_possible(packing.unpack_nibbles(source.half_block_codes(index)), k - (m - 1))[0].all():
            return True
    return False


def all_zero(packed: Packed) -> bool:
    """Is every code plus or minus zero?"""
    if packed.stored.contiguous:  # a look at the first block is nearly always enough
        start = packed.stored.start
        first = packed.read(packed.stored.main.tensor.file).read(start, start + 16)
        if (np.frombuffer(first, dtype=np.uint8) & 0x77).any():
            return False
    return not (packed.codes & 0x77).any()


@lru_cache(maxsize=512)
def _expected_bytes(m: int) -> U8:
    """For each E8M0 byte the E4M3 byte of ``2^(k-m)``, 0 where there is none. Shape: ``[256]``.

    Read off the decoder: among all E4M3 bytes, those whose value is a power of two.
    """
    by_exponent: dict[int, int] = {}
    for byte in range(0x7F):
        mantissa = int(e4m3.MANTISSA[byte])
        if mantissa and mantissa & (mantissa - 1) == 0:
            by_exponent[int(e4m3.EXPONENT[byte]) + mantissa.bit_length() - 1] = byte
    return np.array([by_exponent.get(b - e8m0.BIAS - m, 0) if b != e8m0.NAN else 0 for b in range(256)], dtype=np.uint8)


def _suspects(source: Packed, out: Packed, same_codes: bool) -> NDArray[np.int64] | None:
    """Flat indices of the half blocks that the fast way does not settle; None if it settles all of them."""
    expected: NDArray[np.generic]
    complete = True
    if source.global_scale is None and out.global_scale is None:
        expected = source.scale
    elif source.global_scale is None:
        m = global_exponent(out)
        if m is None:
            return np.arange(source.half_blocks)
        table = _expected_bytes(m)
        expected = (table.astype(np.uint16) * 257)[source.scale]  # the byte twice: both half blocks of a block
        used = table[int(source.scale.min(initial=e8m0.BIAS)) : int(source.scale.max(initial=0)) + 1]
        complete = bool(used.all())
    elif out.global_scale is not None and _same_scale(source, out):
        expected = source.scale
    else:
        return np.arange(source.half_blocks)
    if complete and same_codes and same_bytes(expected, out.scale):
        return None
    wanted = np.ascontiguousarray(expected).view(np.uint8).reshape(out.scale.shape)
    suspect = wanted != out.scale
    if not complete:
        suspect |= wanted == 0
    if out.per_scale > 1:
        suspect = np.repeat(suspect, out.per_scale, axis=1)
    if not same_codes:
        before, after = source.codes.reshape(-1).view(np.uint64), out.codes.reshape(-1).view(np.uint64)
        suspect |= (before != after).reshape(suspect.shape)
    return np.flatnonzero(suspect)


def _rounded_reciprocal(source: Packed, out: Packed, rules: Rules, same_codes: bool) -> bool:
    """A global scale turned from multiplier to divisor (or back) that float32 cannot hold, as the manifest admits."""
    if source.global_scale is None or out.global_scale is None or _same_scale(source, out):
        return False
    return (
        rules.allow_inexact
        and rules.rounded.get(out.stored.name) == out.half_blocks
        and source.stored.divides != out.stored.divides
        and bool(out.global_scale == np.float32(1) / source.global_scale)
        and same_codes
        and same_bytes(source.scale, out.scale)
    )


def _same_scale(source: Packed, out: Packed) -> bool:
    """Do both global scales of two NVFP4 matrices mean the same factor?"""
    assert source.global_scale is not None and out.global_scale is not None
    if source.stored.divides == out.stored.divides:
        return bool(source.global_scale == out.global_scale)
    return global_exponent(source) is not None and global_exponent(source) == global_exponent(out)


@dataclass(frozen=True, slots=True)
class _HalfBlocks:
    """A chunk of half blocks of both sides. Shapes: places ``[n]``, codes ``[n, 16]``, scales ``[n]``."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    source_codes: U8
    source_scale: U8
    out_codes: U8
    out_scale: U8


def _half_blocks(source: Packed, out: Packed, indices: NDArray[np.int64], same_codes: bool) -> Iterator[_HalfBlocks]:
    per_row = out.stored.cols // 16
    for start in range(0, indices.size, _CHUNK):
        index = indices[start : start + _CHUNK]
        rows, halves = np.divmod(index, per_row)
        source_codes = packing.unpack_nibbles(source.half_block_codes(index))
        yield _HalfBlocks(
            rows,
            halves * 16,
            source_codes,
            source.scale[rows, halves // source.per_scale],
            source_codes if same_codes else packing.unpack_nibbles(out.half_block_codes(index)),
            out.scale[rows, halves // out.per_scale],
        )


def _compare_half_blocks(
    source: Packed, out: Packed, suspects: NDArray[np.int64], same_codes: bool, rules: Rules, result: MatrixResult
) -> None:
    listed = rules.inexact.get(out.stored.name, {}) if rules.allow_inexact else {}
    seen: set[tuple[int, int]] = set()
    wrong, scales, role = First(), First(), "codes"
    for chunk in _half_blocks(source, out, suspects, same_codes):
        same = equal_values(
            source.table, chunk.source_scale, chunk.source_codes, out.table, chunk.out_scale, chunk.out_codes
        )
        zero = np.asarray((chunk.source_codes & 7 == 0).all(axis=1))
        for n, why in _scale_faults(source, out, chunk, zero, rules):
            scales.note(int(chunk.rows[n]), int(chunk.columns[n]), why)
        differing = ~same.all(axis=1)
        moved = (chunk.source_codes != chunk.out_codes).any(axis=1)
        result.counts.renormalised_half_blocks += int((moved & ~differing).sum())
        faulty = np.flatnonzero(differing)
        if listed and faulty.size:
            faulty = _accept_listed(source, out, chunk, faulty, listed, seen, result)
        if faulty.size:
            n = int(faulty[0])
            element = int(np.flatnonzero(~same[n])[0])
            if wrong.count == 0:
                role = "codes" if moved[n] else "scale"
            why = _two_values(source, out, chunk, n, element)
            wrong.note(int(chunk.rows[n]), int(chunk.columns[n]) + element, why)
            wrong.count += faulty.size - 1
    if role == "scale" and out.global_scale is not None and 1 < wrong.count == _live_half_blocks(source):
        role = "global_scale"  # all of them at once, and no code changed
    wrong.tell(result, "value", role, "half blocks differ")
    scales.tell(result, "scale", "scale", "block scales are wrong")
    exact = sorted(set(listed) - seen)
    if exact:
        why = f"the manifest lists this half block as inexact, but it is exact ({len(exact)} such)"
        result.fail("inexact", "codes", why, *exact[0])


def _live_half_blocks(packed: Packed) -> int:
    return int(np.count_nonzero(packed.codes.reshape(-1).view(np.uint64) & np.uint64(0x7777777777777777)))


def _two_values(source: Packed, out: Packed, chunk: _HalfBlocks, n: int, element: int) -> str:
    before = source.table.to_float64()[chunk.source_scale[n], chunk.source_codes[n, element]]
    scale = int(chunk.out_scale[n])
    code = int(chunk.out_codes[n, element])
    after = repr(float(out.table.to_float64()[scale, code])) if out.table.legal[scale] else "NaN"
    return f"value is {after} (scale byte {scale}, code {code}), the source has {float(before)!r}"


def _scale_faults(
    source: Packed, out: Packed, chunk: _HalfBlocks, zero: NDArray[np.bool_], rules: Rules
) -> Iterator[tuple[int, str]]:
    """Half blocks whose stored scale is no legal one, or, where that is prescribed, not the prescribed one."""
    byte = chunk.out_scale
    if out.global_scale is None:
        if source.global_scale is None:
            for n in np.flatnonzero(byte != chunk.source_scale):
                yield int(n), f"scale byte is {int(byte[n])}, the source has {int(chunk.source_scale[n])}"
        else:
            for n in np.flatnonzero(byte == e8m0.NAN):
                yield int(n), "block scale is NaN"
        return
    unchanged = byte == chunk.source_scale if source.global_scale is not None else np.zeros(byte.shape, dtype=bool)
    illegal = ((byte & 0x7F) == 0x7F) | ((byte == 0) | (byte >= 0x80)) & ~unchanged
    for n in np.flatnonzero(illegal):
        yield (
            int(n),
            f"block scale is {float(e4m3.VALUES[byte[n]])} (byte {int(byte[n])}); it must be positive and finite",
        )
    if not rules.canonical:
        return
    if source.global_scale is None:
        m = global_exponent(out)
        if m is None:
            return
        d = (e8m0.exponents(chunk.source_scale).astype(np.int64) - m).clip(e4m3.MIN_POW2, e4m3.MAX_POW2)
        prescribed = _expected_bytes(0)[d + e8m0.BIAS]
    else:
        prescribed = chunk.source_scale
    for n in np.flatnonzero(zero & ~illegal & (byte != prescribed)):
        yield int(n), f"scale byte of an all-zero half block is {int(byte[n])}, should be {int(prescribed[n])}"


def _accept_listed(
    source: Packed,
    out: Packed,
    chunk: _HalfBlocks,
    faulty: NDArray[np.int64],
    listed: Mapping[tuple[int, int], float],
    seen: set[tuple[int, int]],
    result: MatrixResult,
) -> NDArray[np.int64]:
    """Take out the half blocks that the manifest lists, once their error is what it says. Returns the others."""
    places = [(int(chunk.rows[n]), int(chunk.columns[n])) for n in faulty]
    known = np.array([place in listed for place in places])
    accepted = faulty[known]
    i = (chunk.source_scale[accepted][:, None], chunk.source_codes[accepted])
    j = (chunk.out_scale[accepted][:, None], chunk.out_codes[accepted])
    errors = squared_errors(source.table, i, out.table, j)
    wrong_code = wrongly_rounded(source.table, i, out.table, j)
    avoidable = _avoidable(source, out, chunk, accepted)
    for place, error, wrong, fault in zip(
        [p for p in places if p in listed], errors, wrong_code, avoidable, strict=True
    ):
        seen.add(place)
        result.inexact.append(Inexact(out.stored.name, *place, float(error)))
        said = listed[place]
        if fault:
            result.fail("inexact", "codes", fault, *place)
        elif not (said == error or abs(said - error) <= 1e-9 * abs(error) < float("inf")):
            why = f"squared error of this inexact half block is {float(error)!r}, the manifest says {said!r}"
            result.fail("inexact", "codes", why, *place)
        elif wrong >= 0:
            why = "the code is not the nearest one (ties to even, sign kept) for this inexact half block's scale"
            result.fail("inexact", "codes", why, place[0], place[1] + int(wrong))
    result.counts.inexact_half_blocks += len(accepted)
    return np.asarray(faulty[~known])


def _avoidable(source: Packed, out: Packed, chunk: _HalfBlocks, accepted: NDArray[np.int64]) -> list[str]:
    """Why the loss in each of these half blocks need not have been; empty where it had to be, and is the least."""
    m = None if out.global_scale is None or source.global_scale is not None else global_exponent(out)
    if m is None:
        why = "only a cast from MXFP4 to NVFP4 under a power of two may list inexact half blocks"
        return [why] * accepted.size
    codes, scale = chunk.source_codes[accepted], chunk.out_scale[accepted]
    d = e8m0.exponents(chunk.source_scale[accepted]).astype(np.int64) - m
    possible, least = best_possible(codes, d)
    own = own_errors(codes, d, chunk.out_codes[accepted], scale)
    reasons = []
    for exact, clipped, worse in zip(possible, d > e4m3.MAX_POW2, own > least * (1 + 1e-9), strict=True):
        if exact:
            reasons.append("the manifest lists this half block as inexact, but it could be exact")
        elif clipped:
            reasons.append("this half block is clipped: the global scale is smaller than it needs")
        else:
            reasons.append("another block scale would give this inexact half block a smaller error" if worse else "")
    return reasons


def _check_global_scale(source: Packed, out: Packed, result: MatrixResult) -> None:
    """Under a manifest the global scale is prescribed too, so that a changed one is named even over zeros."""
    if out.global_scale is None or any(f.kind == "value" for f in result.failures):
        return
    if source.global_scale is None:
        if global_exponent(out) is None:
            why = f"global scale is {out.global_scale}, which is no power of two"
            result.fail("global_scale", "global_scale", why, 0, 0)
    elif not _same_scale(source, out) and not result.counts.inexact_half_blocks:
        why = f"global scale is {out.global_scale}, which is not what the source's {source.global_scale} becomes"
        result.fail("global_scale", "global_scale", why, 0, 0)
