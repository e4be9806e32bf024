"""MXFP4 -> INT4 in groups of 128 against the error of a matrix's *outputs*: GPTQ, with the Hessian of its inputs.

For inputs with second moments ``H`` (mean of ``x x^T``) a matrix ``Q`` in place of ``W`` changes the outputs by
``tr((W - Q) H (W - Q)^T)`` a token on average. With ``H = R R^T``, ``R`` upper triangular, that is the sum of squares of
``(W - Q) R``, whose column ``j`` depends on columns up to ``j`` alone. So columns are rounded from the first to the last:
with errors ``e`` of those before it, column ``j`` is rounded where ``w_j + sum(e_k R_kj) / R_jj`` lies, to the nearest code.

Each group of 128 columns gets its BF16 scale when its turn comes: the one of least squared error, each column weighted by
``R_jj^2``, for the values at which the group would stand if none of it were rounded. All BF16 scales of either sign are
tried that :mod:`truecast.casts.int4` tries; ties go to the smaller magnitude, then to the positive one. Where ``H`` is a
multiple of the identity this is the data-free rounding, bit for bit.

A group whose weights are all zero stays so, with scale 1. ``H`` is damped by a hundredth of its mean diagonal. Loops of fixed
order in float64: the same machine code gives the same bits.

Source: Frantar et al., "GPTQ", arXiv 2210.17323; the form with ``R`` is that of Chen et al., arXiv 2507.18553.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from truecast.casts.int4 import GROUP, Int4Matrix
from truecast.formats import e2m1, packing

F64 = NDArray[np.float64]

DAMPING = 0.01


def quantize(packed: NDArray[np.uint8], scales: NDArray[np.uint8], hessian: NDArray[np.floating]) -> Int4Matrix:
    """Quantize one matrix.

    Shapes: packed MXFP4 codes ``[N, K/2]``, E8M0 scales ``[N, K/32]`` without NaN, hessian ``[K, K]``.
    The errors of the result are those of the weights, not of the outputs.
    Raises: ValueError where K is no multiple of 128, shapes do not belong together, or the Hessian is not positive
    semidefinite.
    """
    from truecast.casts import gptq_cpu  # numba takes a second to load: only where something is quantized

    rows, cols = packed.shape[0], packed.shape[1] * 2
    if cols % GROUP:
        raise ValueError(f"a row holds {cols} elements, which is no multiple of {GROUP}")
    if hessian.shape != (cols, cols):
        raise ValueError(f"the Hessian is {list(hessian.shape)}, should be {[cols, cols]}")
    values = decode(packed, scales)
    shape = (rows, cols // GROUP)
    codes, bits = np.empty((rows, cols), np.int8), np.empty(shape, np.uint16)
    gptq_cpu.round_columns(values, factor(hessian), codes, bits)
    step = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    off = (values - np.repeat(step, GROUP, axis=1) * codes).reshape(*shape, GROUP)
    nibbles = packing.pack_nibbles(codes.view(np.uint8) & np.uint8(15))
    return Int4Matrix(nibbles, bits, np.square(off).sum(-1), np.square(values.reshape(off.shape)).sum(-1))


def factor(hessian: NDArray[np.floating]) -> F64:
    """Upper triangular R with R R^T = the damped Hessian. Shapes: ``[K, K]`` -> ``[K, K]``.

    A Hessian of zeros counts as the identity. Raises: ValueError where it is not finite, or not positive semidefinite.
    """
    from truecast.casts import gptq_cpu

    damped = hessian.astype(np.float64)
    damped = (damped + damped.T) / 2
    diagonal = damped.diagonal()
    if not np.isfinite(damped).all():
        raise ValueError("the Hessian is not finite")
    if (diagonal < 0).any():
        raise ValueError(f"the Hessian is negative at channel {int(np.flatnonzero(diagonal < 0)[0])} of its diagonal")
    mean = float(diagonal.mean())
    damped[np.diag_indices_from(damped)] += DAMPING * mean if mean > 0 else 1.0
    if (channel := gptq_cpu.factorise(damped)) >= 0:
        raise ValueError(f"the Hessian is not positive semidefinite (channel {channel})")
    return damped


def decode(packed: NDArray[np.uint8], scales: NDArray[np.uint8]) -> F64:
    """Values of an MXFP4 matrix, exactly. Shapes: ``[N, K/2]``, ``[N, K/32]`` -> ``[N, K]``."""
    codes = packing.unpack_nibbles(packed)
    return np.ldexp(e2m1.decode(codes).astype(np.float64), np.repeat(scales.astype(np.int64) - 127, 32, axis=1))
