"""The search of :mod:`truecast.casts.int4` on a CUDA device: a Triton kernel, one group a lane.

The same integers, and the same float64 operations in the same order, as :mod:`truecast.casts.int4_cpu`; products and
sums are not fused. So the results are equal bit for bit.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from truecast.casts.int4_steps import CHANGES, CODES, HIGH, INTERVALS, LIVE, LOW, START

_CHANGED = tuple(int(x) for x in CHANGES[:, :, 0].ravel())
_BEFORE = tuple(int(x) for x in CHANGES[:, :, 1].ravel())
_LOW = tuple(int(x) for x in LOW)
_HIGH = tuple(int(x) for x in HIGH)
_START = tuple(int(x) for x in START)
_TABLE = np.zeros((128, 16), np.int32)
_TABLE[:, 1 : 1 + len(LIVE)] = CODES
_TABLE[:, 1 + len(LIVE) :] = 8
_LANES = 128
_WARPS = 4


@triton.jit
def _place(magnitude):
    """Place of an E2M1 magnitude code 1..7 in the order of magnitudes: 0.5 is -2, 1 is 0, 1.5 is 1, 2 is 2."""
    return magnitude - 2 - (magnitude == 1).to(tl.int32)


@triton.jit
def _power(exponent):
    """``2^exponent`` as float64, for exponents of normal numbers."""
    return ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _kernel(
    packed,
    scales,
    weights,
    table,
    codes,
    out_scales,
    errors,
    energies,
    total,
    per_row,
    METHOD: tl.constexpr,
    NEGATIVE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    HIGHEST: tl.constexpr,
    LOWEST: tl.constexpr,
    INTERVAL_COUNT: tl.constexpr,
    CHANGED: tl.constexpr,
    BEFORE: tl.constexpr,
    LOWS: tl.constexpr,
    HIGHS: tl.constexpr,
    STARTS: tl.constexpr,
    VALUES: tl.constexpr,
    LANES: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = n < total
    scale_bytes = tl.load(scales + n, mask=inside, other=0)
    column = (n % per_row) * 128
    sum_type: tl.constexpr = tl.int64 if WEIGHTED else tl.int32
    FIELD: tl.constexpr = 32 if WEIGHTED else 16
    MASK: tl.constexpr = (1 << FIELD) - 1

    top = tl.full([LANES], -(1 << 20), tl.int32)
    for w in range(16):
        word = tl.load(packed + n * 16 + w, mask=inside, other=0)
        k = ((scale_bytes >> (8 * (w // 4))) & 255) - 127
        for nibble in tl.static_range(8):
            magnitude = (word >> (4 * nibble)) & 7
            top = tl.maximum(top, tl.where(magnitude > 0, 2 * k + _place(magnitude), -(1 << 20)))
    empty = top < -(1 << 19)
    top = tl.where(empty, 0, top)
    base = top >> 1
    odd = top & 1

    best = tl.zeros([LANES], tl.float64)
    best_mantissa = tl.full([LANES], 128, tl.int32)
    best_e = -126 - base
    best_sign = tl.zeros([LANES], tl.int32)
    if METHOD == 0:
        for t in range(HIGHEST - LOWEST + 1):
            e = HIGHEST - t
            # How often (or with which weight) each live magnitude occurs: five words of two sums each, for each sign.
            p0 = tl.zeros([LANES], sum_type)
            p1 = tl.zeros([LANES], sum_type)
            p2 = tl.zeros([LANES], sum_type)
            p3 = tl.zeros([LANES], sum_type)
            p4 = tl.zeros([LANES], sum_type)
            m0 = tl.zeros([LANES], sum_type)
            m1 = tl.zeros([LANES], sum_type)
            m2 = tl.zeros([LANES], sum_type)
            m3 = tl.zeros([LANES], sum_type)
            m4 = tl.zeros([LANES], sum_type)
            full_plus = tl.zeros([LANES], sum_type)
            full_minus = tl.zeros([LANES], sum_type)
            count_plus = tl.zeros([LANES], sum_type)
            count_minus = tl.zeros([LANES], sum_type)
            for w in range(16):
                word = tl.load(packed + n * 16 + w, mask=inside, other=0)
                k = ((scale_bytes >> (8 * (w // 4))) & 255) - 127
                offset = 2 * (k - base - e) + 1
                for nibble in tl.static_range(8):
                    code = (word >> (4 * nibble)) & 15
                    magnitude = code & 7
                    b = tl.where(magnitude > 0, offset + _place(magnitude), -1)
                    if WEIGHTED:
                        weight = tl.load(weights + column + w * 8 + nibble, mask=inside, other=0)
                    else:
                        weight = tl.full([LANES], 1, tl.int32)
                    amount = weight.to(sum_type)
                    one = amount << (FIELD * (b & 1))
                    which = tl.where(b >= 0, (b >> 1) * 2 + (code >> 3), -1)
                    p0 += tl.where(which == 0, one, 0)
                    m0 += tl.where(which == 1, one, 0)
                    p1 += tl.where(which == 2, one, 0)
                    m1 += tl.where(which == 3, one, 0)
                    p2 += tl.where(which == 4, one, 0)
                    m2 += tl.where(which == 5, one, 0)
                    p3 += tl.where(which == 6, one, 0)
                    m3 += tl.where(which == 7, one, 0)
                    p4 += tl.where((which == 8) & (b == 8), one, 0)
                    m4 += tl.where((which == 9) & (b == 8), one, 0)
                    saturated = b >= 9
                    shift = tl.minimum(tl.maximum(b >> 1, 0), 24)
                    value = amount * tl.where((b & 1) == 1, 4 << shift, 3 << shift).to(sum_type)
                    full_plus += tl.where(saturated & (code < 8), value, 0)
                    full_minus += tl.where(saturated & (code >= 8), value, 0)
                    count_plus += tl.where(saturated & (code < 8), amount, 0)
                    count_minus += tl.where(saturated & (code >= 8), amount, 0)
            plus = (
                p0 & MASK, p0 >> FIELD, p1 & MASK, p1 >> FIELD, p2 & MASK, p2 >> FIELD, p3 & MASK, p3 >> FIELD, p4
            )  # fmt: skip
            minus = (
                m0 & MASK, m0 >> FIELD, m1 & MASK, m1 >> FIELD, m2 & MASK, m2 >> FIELD, m3 & MASK, m3 >> FIELD, m4
            )  # fmt: skip
            products = 7 * (full_plus + full_minus)
            squares = 49 * (count_plus + count_minus)
            for b in tl.static_range(9):
                products += (plus[b] + minus[b]) * (VALUES[b] * STARTS[b])
                squares += (plus[b] + minus[b]) * (STARTS[b] * STARTS[b])
            more_products_plus = full_plus
            more_products_minus = full_minus
            more_squares_plus = 15 * count_plus
            more_squares_minus = 15 * count_minus
            allowed = base + e >= -126
            unit = _power(tl.full([LANES], 0, tl.int32) + 2 * e)
            for interval in tl.static_range(INTERVAL_COUNT):
                for change in tl.static_range(2):
                    if CHANGED[2 * interval + change] < 9:
                        if BEFORE[2 * interval + change] < 7:
                            products += (
                                plus[CHANGED[2 * interval + change]] + minus[CHANGED[2 * interval + change]]
                            ) * VALUES[CHANGED[2 * interval + change]]
                            squares += (
                                plus[CHANGED[2 * interval + change]] + minus[CHANGED[2 * interval + change]]
                            ) * (2 * BEFORE[2 * interval + change] + 1)
                        else:
                            more_products_plus += (
                                plus[CHANGED[2 * interval + change]] * VALUES[CHANGED[2 * interval + change]]
                            )
                            more_products_minus += (
                                minus[CHANGED[2 * interval + change]] * VALUES[CHANGED[2 * interval + change]]
                            )
                            more_squares_plus += plus[CHANGED[2 * interval + change]] * 15
                            more_squares_minus += minus[CHANGED[2 * interval + change]] * 15
                for sign in tl.static_range(2):
                    if sign == 0 or NEGATIVE:
                        product = products + (more_products_minus if sign == 0 else more_products_plus)
                        square = squares + (more_squares_minus if sign == 0 else more_squares_plus)
                        square = tl.maximum(square, 1)
                        below = ((32 * product) // square).to(tl.int64)
                        if interval == INTERVAL_COUNT - 1:  # below the smallest scale there is none to go on with
                            below = tl.where(e == -126 - base, tl.maximum(below, 128), below)
                        for step in tl.static_range(2):
                            m = below + step
                            raw = m * (m * square.to(tl.int64) - 64 * product.to(tl.int64))
                            gain = raw.to(tl.float64) * unit
                            smaller = (e < best_e) | (
                                (e == best_e) & ((m < best_mantissa) | ((m == best_mantissa) & (sign < best_sign)))
                            )
                            better = (gain < best) | ((gain == best) & (best != 0.0) & smaller)
                            better = better & allowed & (m >= LOWS[interval]) & (m <= HIGHS[interval])
                            best = tl.where(better, gain, best)
                            best_mantissa = tl.where(better, m.to(tl.int32), best_mantissa)
                            best_e = tl.where(better, e, best_e)
                            best_sign = tl.where(better, sign, best_sign)
    elif METHOD == 1:
        positive = tl.zeros([LANES], tl.int32)
        for w in range(16):
            word = tl.load(packed + n * 16 + w, mask=inside, other=0)
            k = ((scale_bytes >> (8 * (w // 4))) & 255) - 127
            for nibble in tl.static_range(8):
                code = (word >> (4 * nibble)) & 15
                hit = (code > 0) & (code < 8) & (2 * k + _place(code) == top)
                positive = tl.where(hit, 1, positive)
        best_sign = positive
        best_mantissa = tl.where(odd == 1, 192, 128)
        best_e = tl.full([LANES], -3, tl.int32)
    else:
        best_mantissa = tl.where(odd == 1, 219, 146)
        best_e = tl.full([LANES], -3, tl.int32)
    tiny = base + best_e < -126
    best_mantissa = tl.where(tiny, 128, best_mantissa)
    best_e = tl.where(tiny, -126 - base, best_e)
    bits = (best_sign << 15) | ((base + best_e + 127) << 7) | (best_mantissa - 128)
    tl.store(out_scales + n, tl.where(empty, 0x3F80, bits).to(tl.int16), mask=inside)

    step_size = best_mantissa.to(tl.float64) * _power(best_e - 7)
    error = tl.zeros([LANES], tl.float64)
    energy = tl.zeros([LANES], tl.float64)
    for block in range(4):
        k = ((scale_bytes >> (8 * block)) & 255) - 127
        unit = _power(tl.maximum(k - 1 - base, -600))
        counts_plus = tl.zeros([LANES], tl.int64)
        counts_minus = tl.zeros([LANES], tl.int64)
        for w in range(4):
            word = tl.load(packed + n * 16 + block * 4 + w, mask=inside, other=0)
            for nibble in tl.static_range(8):
                code = (word >> (4 * nibble)) & 15
                one = tl.full([LANES], 1, tl.int64) << (8 * (code & 7)).to(tl.int64)
                counts_plus += tl.where(code < 8, one, 0)
                counts_minus += tl.where(code >= 8, one, 0)
        new_plus = tl.zeros([LANES], tl.int32)  # the new code of each magnitude, four bits each
        new_minus = tl.zeros([LANES], tl.int32)
        sum_of_squares = tl.zeros([LANES], tl.int64)
        for magnitude in tl.static_range(1, 8):
            halves = (0, 1, 2, 3, 4, 6, 8, 12)[magnitude]
            place = (0, -2, 0, 1, 2, 3, 4, 5)[magnitude]
            at = tl.minimum(tl.maximum(2 * (k - base - best_e) + place + 1, -1), 9)
            nearest = tl.load(table + (best_mantissa - 128) * 16 + at + 1)
            value = halves * unit
            for side in tl.static_range(2):
                capped = tl.where(best_sign == side, tl.minimum(nearest, 7), nearest)
                stored = tl.where(best_sign == side, capped, (16 - capped) & 15)
                count = ((counts_plus if side == 0 else counts_minus) >> (8 * magnitude)) & 255
                if side == 0:
                    new_plus |= stored << (4 * magnitude)
                else:
                    new_minus |= stored << (4 * magnitude)
                off = value - step_size * capped.to(tl.float64)
                square = off * off
                error = tl.where(count > 0, error + count.to(tl.float64) * square, error)
                sum_of_squares += count * (halves * halves)
        energy += sum_of_squares.to(tl.float64) * (unit * unit)
        for w in range(4):
            word = tl.load(packed + n * 16 + block * 4 + w, mask=inside, other=0)
            result = tl.zeros([LANES], tl.int32)
            for nibble in tl.static_range(8):
                code = (word >> (4 * nibble)) & 15
                new = tl.where(code < 8, new_plus, new_minus)
                result |= ((new >> (4 * (code & 7))) & 15) << (4 * nibble)
            tl.store(codes + n * 16 + block * 4 + w, tl.where(empty, 0, result), mask=inside)
    whole = _power(2 * base)
    tl.store(errors + n, tl.where(empty, 0.0, error * whole), mask=inside)
    tl.store(energies + n, tl.where(empty, 0.0, energy * whole), mask=inside)


def launch(
    packed: torch.Tensor,
    scales: torch.Tensor,
    weights: torch.Tensor | None,
    method: int,
    negative: bool,
    depth: int,
    per_row: int,
    *,
    extended: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize what lies on the device already.

    Shapes: packed ``[16 n]`` and scales ``[n]`` int32 (the bytes of n groups), weights ``[K]`` int32; results codes
    ``[16 n]`` int32, scales ``[n]`` int16, errors and energies ``[n]`` float64. ``extended``: look at all scales down
    to the smallest normal number, which groups of tiny values need.
    """
    total = scales.numel()
    codes = torch.empty_like(packed)
    out_scales = torch.empty(total, dtype=torch.int16, device=packed.device)
    errors = torch.empty(total, dtype=torch.float64, device=packed.device)
    energies = torch.empty_like(errors)
    with torch.cuda.device(packed.device):
        _kernel[(triton.cdiv(total, _LANES),)](
            packed,
            scales,
            scales if weights is None else weights,
            _table(packed.device),
            codes,
            out_scales,
            errors,
            energies,
            total,
            per_row,
            METHOD=method,
            NEGATIVE=negative,
            WEIGHTED=weights is not None,
            HIGHEST=1 if extended else -2,
            LOWEST=-depth,
            INTERVAL_COUNT=INTERVALS,
            CHANGED=_CHANGED,
            BEFORE=_BEFORE,
            LOWS=_LOW,
            HIGHS=_HIGH,
            STARTS=_START,
            VALUES=LIVE,
            LANES=_LANES,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
    return codes, out_scales, errors, energies


def device_count() -> int:
    """How many CUDA devices torch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


_tables: dict[torch.device, torch.Tensor] = {}


def _table(device: torch.device) -> torch.Tensor:
    if device not in _tables:
        _tables[device] = torch.from_numpy(_TABLE).to(device)
    return _tables[device]


def _upload(data: np.ndarray, device: torch.device) -> torch.Tensor:
    """Bytes as int32 words on the device, by way of page-locked memory, from where they travel several times faster."""
    words = np.ascontiguousarray(data).view(np.int32).reshape(-1)
    staged = torch.empty(words.size, dtype=torch.int32, pin_memory=device.type == "cuda")  # torch keeps and reuses it
    np.copyto(staged.numpy(), words)
    return staged.to(device)


def quantize(
    packed: np.ndarray,
    scales: np.ndarray,
    weights: np.ndarray,
    method: int,
    negative: bool,
    depth: int,
    device: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """As :func:`truecast.casts.int4_cpu.quantize`, but the results are returned."""
    from truecast.casts.int4_cpu import DEPTH

    rows, groups = packed.shape[0], packed.shape[1] // 64
    target = torch.device(device)
    words, scale_words = _upload(packed, target), _upload(scales, target)
    given = None if depth == DEPTH else torch.from_numpy(weights.astype(np.int32)).to(target)
    tiny = bool((scales < depth + 4).any())  # such a group may want a scale below the smallest normal number
    codes, out_scales, errors, energies = launch(
        words, scale_words, given, method, negative, depth, groups, extended=tiny
    )
    return (
        codes.cpu().numpy().view(np.uint8).reshape(packed.shape),
        out_scales.cpu().numpy().view(np.uint16).reshape(rows, groups),
        errors.cpu().numpy().reshape(rows, groups),
        energies.cpu().numpy().reshape(rows, groups),
    )
