"""What enters each quantized matrix, added up: the taps of a calibration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from truecast.audit.activations import bank_of
from truecast.layouts.calibration import InputStatistics


@dataclass(slots=True, eq=False)
class _Sums:
    """Over all tokens so far, in float64 on the model's device.

    Shapes: ``amax`` ``[]``; ``squares`` ``[in]``; ``products``, the sum of x x^T, ``[in, in]`` or None.
    """

    tokens: int
    amax: Tensor
    squares: Tensor
    products: Tensor | None

    def add(self, x: Tensor) -> None:
        """Add tokens ``[n, in]``."""
        wide = x.double()
        self.tokens += len(x)
        self.amax = torch.maximum(self.amax, wide.abs().amax())
        self.squares += wide.square().sum(0)
        if self.products is not None:
            self.products += wide.T @ wide

    def statistics(self) -> InputStatistics:
        """Largest magnitude and means, as a calibration holds them."""
        moment = (self.squares / self.tokens).float().cpu().numpy()
        hessian = None
        if self.products is not None:
            hessian = ((self.products + self.products.T) / (2 * self.tokens)).float().cpu().numpy()
        return InputStatistics(float(self.amax), moment, self.tokens, hessian)


class Recorder:
    """Taps that change nothing and note the inputs of quantized matrices.

    Matrices that are given one and the same tensor, as gate and up of an expert are, share their sums: what they have in
    common is added, and kept, once.
    """

    def __init__(self, hessian: bool) -> None:
        self._hessian = hessian
        self._sums: dict[str, _Sums] = {}
        self._last: tuple[Tensor, _Sums] | None = None

    def input(self, module: str, x: Tensor, scale: Tensor | None) -> Tensor:
        """See :class:`truecast.models.taps.Taps`."""
        known = self._sums.get(module)
        if self._last is not None and self._last[0] is x and known in (None, self._last[1]):
            self._sums[module] = self._last[1]
            return x
        if known is None:
            known = self._sums[module] = self._empty(x)
        known.add(x)
        self._last = x, known
        return x

    def kv(self, layer: int, x: Tensor) -> Tensor:
        """See :class:`truecast.models.taps.Taps`."""
        return x

    def take(self) -> dict[str, InputStatistics]:
        """Statistics by module of what came since the last call. What shares sums shares arrays."""
        made = {id(sums): sums.statistics() for sums in self._sums.values()}
        found = {module: made[id(sums)] for module, sums in self._sums.items()}
        self._sums, self._last = {}, None
        return found

    def _empty(self, x: Tensor) -> _Sums:
        width = x.shape[1]
        squares = torch.zeros(width, dtype=torch.float64, device=x.device)
        products = squares.new_zeros(width, width) if self._hessian else None
        return _Sums(0, squares.new_zeros(()), squares, products)


def with_never_routed(found: dict[str, InputStatistics], modules: Iterable[str]) -> dict[str, InputStatistics]:
    """Statistics of all ``modules`` of a layer, in their order.

    An expert that no token reached has 0 tokens and its bank's values: the largest amax of all experts with the same
    kind of input, and means over all their tokens. A bank that nothing reached is left out.
    """
    banks: dict[tuple[str, str], dict[int, InputStatistics]] = defaultdict(dict)
    for module, one in found.items():
        banks[bank_of(module)][id(one)] = one
    pooled: dict[tuple[str, str], InputStatistics] = {}
    result = {}
    for module in modules:
        bank = bank_of(module)
        if module in found:
            result[module] = found[module]
        elif bank in banks:
            if bank not in pooled:
                pooled[bank] = _pool(list(banks[bank].values()))
            result[module] = pooled[bank]
    return result


def _pool(parts: list[InputStatistics]) -> InputStatistics:
    tokens = [part.tokens for part in parts]
    moment = np.average([part.second_moment for part in parts], axis=0, weights=tokens).astype("<f4")
    hessian = None
    if parts[0].hessian is not None:
        total = np.zeros_like(parts[0].hessian, dtype=np.float64)
        for part in parts:
            total += part.tokens / sum(tokens) * (0 if part.hessian is None else part.hessian)
        hessian = total.astype("<f4")
    return InputStatistics(max(part.amax for part in parts), moment, 0, hessian)
