"""Does a BF16 matrix hold what a 4-bit one means? Bit patterns are compared, after decoding the 4-bit side here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from truecast.verify.canonical import byte_pairs, expand_pairs
from truecast.verify.compare import check_source, same_bytes
from truecast.verify.matrix import First, MatrixResult
from truecast.verify.rules import Rules
from truecast.verify.stored import Packed, PlainRows

U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]

_CHUNK_BYTES = 1 << 19  # packed bytes decoded at a time


def decode_bf16(packed: Packed) -> Iterator[tuple[int, U32]]:
    """BF16 bit patterns, two elements to a uint32, by chunks of rows: ``(first row, [rows, cols/2])``."""
    yield from _lookup(packed, byte_pairs(packed.table.to_bf16()[0]))


def inexact_bf16(packed: Packed) -> int:
    """How many elements BF16 cannot hold."""
    inexact = ~packed.table.to_bf16()[1]
    if not np.asarray(inexact.any(axis=1))[packed.scale].any():
        return 0
    return sum(int(flags.view(np.uint16).sum()) for _, flags in _lookup(packed, byte_pairs(inexact.astype(np.uint16))))


def compare_bf16(source: Packed, out: PlainRows, rules: Rules) -> MatrixResult:
    """Compare a 4-bit matrix with its BF16 form.

    Every bit pattern must be the correctly rounded one (to nearest even), which is the exact value wherever BF16 has
    it; elements where it has not are allowed only if the manifest says so.
    Raises: InputError for a source with NaN scales or a global scale that is not positive and finite.
    """
    check_source(source)
    result = MatrixResult(out.stored)
    wrong = First()
    for row, expected in decode_bf16(source):
        stored = out.rows(row, row + len(expected))
        if same_bytes(expected, stored):
            continue
        bits = expected.view(np.uint16).reshape(stored.shape)
        places = np.argwhere(bits != stored)
        r, c = (int(x) for x in places[0])
        wrong.note(row + r, c, f"bits are 0x{int(stored[r, c]):04x}, the source's value is 0x{int(bits[r, c]):04x}")
        wrong.count += len(places) - 1
    wrong.tell(result, "value", "weight", "elements differ")
    inexact = inexact_bf16(source)
    result.counts.inexact_elements = inexact
    if inexact and not (rules.allow_inexact and rules.rounded.get(out.stored.name) == inexact):
        result.fail("inexact", "weight", f"{inexact} values are rounded, which the manifest does not say")
    return result


def _lookup(packed: Packed, pairs: U32) -> Iterator[tuple[int, U32]]:
    rows = max(1, _CHUNK_BYTES // max(1, packed.codes.shape[1]))
    for row in range(0, len(packed.codes), rows):
        yield row, expand_pairs(packed.codes[row : row + rows], packed.scale[row : row + rows], pairs)
