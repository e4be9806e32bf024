"""Documents packed one after another, and the padded view of them that attention needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Documents packed into ``[N, ...]`` tensors. ``lengths`` are their tokens, in order; none is empty."""

    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """``N``, the sum of the lengths."""
        return sum(self.lengths)

    def pad(self, x: Tensor) -> Tensor:
        """One row a document, zeros on the right. Shapes: ``[N, ...]`` -> ``[B, T, ...]``, T the longest."""
        count, longest = len(self.lengths), max(self.lengths)
        if count * longest == self.tokens:
            return x.reshape(count, longest, *x.shape[1:])
        padded = x.new_zeros(count * longest, *x.shape[1:]).index_copy(0, _places(self.lengths, x.device), x)
        return padded.reshape(count, longest, *x.shape[1:])

    def flat(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`pad`; what lies in the padding is dropped. Shapes: ``[B, T, ...]`` -> ``[N, ...]``."""
        flat = x.reshape(-1, *x.shape[2:])
        return flat if flat.shape[0] == self.tokens else flat.index_select(0, _places(self.lengths, x.device))


@lru_cache(maxsize=64)
def _places(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Place of each token in the padded rows. Shape: ``[N]`` int64."""
    longest = max(lengths)
    return torch.cat([torch.arange(n) + i * longest for i, n in enumerate(lengths)]).to(device)


def by_documents(rows: Rows, limit: int, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call ``function(rows, *tensors)`` on groups of documents of similar length, and put the results back in order.

    A group has at most ``limit`` padded tokens, or is one document. ``tensors`` are ``[N, ...]``, as is the result.
    """
    groups = _groups(rows.lengths, limit)
    if len(groups) == 1:
        return function(rows, *tensors)
    starts = [0]
    for length in rows.lengths:
        starts.append(starts[-1] + length)
    places = [torch.cat([torch.arange(starts[d], starts[d + 1]) for d in group]) for group in groups]
    results = []
    for group, place in zip(groups, places, strict=True):
        index = place.to(tensors[0].device)
        some = Rows(tuple(rows.lengths[d] for d in group))
        results.append(function(some, *(t.index_select(0, index) for t in tensors)))
    joined, order = torch.cat(results), torch.cat(places).to(tensors[0].device)
    return joined.new_zeros(joined.shape).index_copy(0, order, joined)


@lru_cache(maxsize=64)
def _groups(lengths: tuple[int, ...], limit: int) -> tuple[tuple[int, ...], ...]:
    """Documents sorted into groups whose padding stays below their tokens. A single group keeps their order."""
    groups: list[list[int]] = []
    longest = 0
    for document in sorted(range(len(lengths)), key=lambda d: -lengths[d]):
        if groups and (len(groups[-1]) + 1) * longest <= limit and 2 * lengths[document] >= longest:
            groups[-1].append(document)
        else:
            groups.append([document])
            longest = lengths[document]
    return tuple(tuple(sorted(group)) for group in groups)
