"""MXFP4 -> INT4 in groups of 128 with the BF16 scale of least squared error, found exactly.

A group is 128 consecutive elements of a row, four MXFP4 blocks, values ``v``. It gets one BF16 scale ``s`` of either
sign and codes ``q`` in -8..7 that minimise ``sum(w * (v - s * q)^2)``:

* **Codes** are the nearest ones under the stored scale, ties to the even code, held to -8..7.
* **Scale.** For fixed codes the error is a parabola in ``s`` with its lowest point at ``sum(w v q) / sum(w q^2)``, so
  the best BF16 scale is one of the two BF16 neighbours of the lowest point of its own interval of constant codes. All
  intervals are walked (:mod:`truecast.casts.int4_steps`); sums are integers, so that nothing depends on an order.
* **Where to look.** Halving a scale that needs only codes up to 3 loses nothing, so the best one lies below 2/7 of the
  largest magnitude A; below A/32 clipping A alone costs more than everything else can at A/8 (with weights below
  A * 2^-14.6, by the same argument). Scales stay normal BF16 numbers.
* **Ties** between scales go to the smaller magnitude, then to the positive one. A group of zeros gets scale 1, codes 0.

The signed scale uses that two's complement has a code -8 but no +8. ``signed`` (the largest magnitude becomes -8) and
``amax`` (largest magnitude / 7) are the rules of other tools, kept to compare with.

Weights: an importance vector per input channel, as from calibration. Inside each group they are taken as 16-bit
integers, ``max(1, round(65535 * w / max w))``: less than that of the largest counts as that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from truecast.formats import e8m0

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]

GROUP = 128
"""Elements along ``in`` that share one scale."""

Method = Literal["exact", "signed", "amax"]
METHODS: tuple[Method, ...] = ("exact", "signed", "amax")

_ONES_16 = 65535


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """A quantized matrix and how far it is off.

    Shapes: codes ``[N, K/2]`` uint8, two's complement, low nibble first; scales ``[N, K/128]`` BF16 bit patterns;
    errors and energies ``[N, K/128]`` float64, the sums of ``(v - s q)^2`` and of ``v^2`` over each group.
    """

    codes: U8
    scales: U16
    errors: NDArray[np.float64]
    energies: NDArray[np.float64]

    @property
    def squared_error(self) -> float:
        """Sum of all ``(v - s q)^2``, added up row by row."""
        return _total(self.errors)

    @property
    def squared_sum(self) -> float:
        """Sum of all ``v^2``, added up row by row."""
        return _total(self.energies)

    @property
    def exact_groups(self) -> int:
        """Groups without any error, those of zeros included."""
        return int(np.count_nonzero(self.errors == 0))

    @property
    def zero_groups(self) -> int:
        """Groups of zeros."""
        return int(np.count_nonzero(self.energies == 0))

    @property
    def negative_scales(self) -> int:
        """Groups with a negative scale."""
        return int(np.count_nonzero(self.scales >> 15))


def quantize(
    packed: U8,
    scales: U8,
    method: Method = "exact",
    weights: NDArray[np.int64] | None = None,
    *,
    device: str = "cpu",
    negative: bool = True,
) -> Int4Matrix:
    """Quantize one matrix.

    Shapes: packed MXFP4 codes ``[N, K/2]``, E8M0 scales ``[N, K/32]``, weights ``[K]`` as from :func:`importance`.
    ``device``: ``cpu``, or a CUDA device as torch spells it; the result is the same bit for bit. ``negative``: may
    scales be negative (for ``exact``)?
    Raises: ValueError where K is no multiple of 128, shapes do not belong together, or a scale is NaN.
    """
    rows, cols = packed.shape[0], packed.shape[1] * 2
    if cols % GROUP:
        raise ValueError(f"a row holds {cols} elements, which is no multiple of {GROUP}")
    if scales.shape != (rows, cols // 32):
        raise ValueError(f"scales are {list(scales.shape)}, should be {[rows, cols // 32]}")
    if weights is not None and weights.shape != (cols,):
        raise ValueError(f"weights are {list(weights.shape)}, should be {[cols]}")
    if scales.size and int(scales.max()) == e8m0.NAN:
        raise ValueError("a block scale is NaN")
    from truecast.casts import int4_cpu  # numba takes a second to load: only where something is quantized

    depth = int4_cpu.DEPTH if weights is None else int4_cpu.DEPTH_WEIGHTED
    chosen = np.ones(cols, np.int64) if weights is None else weights
    how = METHODS.index(method)
    if device != "cpu":
        from truecast.casts import int4_cuda  # torch and Triton are needed nowhere else

        return Int4Matrix(*int4_cuda.quantize(packed, scales, chosen, how, negative, depth, device))
    shape = (rows, cols // GROUP)
    result = Int4Matrix(np.empty_like(packed), np.empty(shape, np.uint16), np.empty(shape), np.empty(shape))
    int4_cpu.quantize(
        packed, scales, chosen, how, negative, depth, result.codes, result.scales, result.errors, result.energies
    )
    return result


def _total(values: NDArray[np.float64]) -> float:
    from truecast.casts import int4_cpu

    return float(int4_cpu.total(values))


def importance(vector: NDArray[np.floating]) -> NDArray[np.int64]:
    """Integer weights for :func:`quantize`. Shapes: ``[K]`` float, finite, >= 0 -> ``[K]`` int64, 1..65535.

    A group whose weights are all zero counts as unweighted.
    Raises: ValueError for a wrong shape, or a weight that is negative or not finite, naming the channel.
    """
    if vector.ndim != 1 or vector.size % GROUP:
        raise ValueError(f"expected one weight an input channel, a multiple of {GROUP}, got {list(vector.shape)}")
    groups = vector.astype(np.float64).reshape(-1, GROUP)
    bad = ~(np.isfinite(groups) & (groups >= 0)).ravel()
    if bad.any():
        channel = int(np.flatnonzero(bad)[0])
        raise ValueError(f"the weight of input channel {channel} is {vector[channel]}; it must be finite and >= 0")
    largest = groups.max(axis=1, keepdims=True, initial=0)
    share = np.divide(groups, largest, out=np.ones_like(groups), where=largest > 0)
    return np.asarray(np.maximum(1, np.rint(share * _ONES_16)), dtype=np.int64).ravel()
