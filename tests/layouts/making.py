"""Headers without files."""

from __future__ import annotations

from collections.abc import Iterable

from truecast.checkpoint.header import TensorInfo, nbytes_of

Spec = tuple[str, str, tuple[int, ...]]
"""name, dtype, shape"""


def headers(specs: Iterable[Spec], file: str = "model.safetensors") -> dict[str, TensorInfo]:
    """The tensors of one file, one after another."""
    tensors: dict[str, TensorInfo] = {}
    position = 0
    for name, dtype, shape in specs:
        end = position + nbytes_of(dtype, shape)
        assert name not in tensors, name
        tensors[name] = TensorInfo(name, dtype, shape, file, position, end)
        position = end
    return tensors
