"""What a tree of weights takes in memory."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def nbytes(tree: Any) -> int:
    """Bytes of all tensors in a dataclass of weights, nested ones and tuples included."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, (tuple, list)):
        return sum(nbytes(item) for item in tree)
    if is_dataclass(tree):
        return sum(nbytes(getattr(tree, f.name)) for f in fields(tree))
    return 0
